"""What something else has written into a message: it holds nothing up, and is not lost."""

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.message import UNREADABLE, Item, Message
from bide.model.replies import Claimed, Counts, Explained, Found, Outcomes, Page
from tests.contract.engines.redis.claims import key
from tests.contract.engines.torn_store import Server, Tear, TornStore, cases

NOW = 1_700_000_000_000
LEASE = 60_000
IDS = [f"m{number}" for number in range(5)]

OF_ROWS_SQLITE = {
    "headers that are no text": "headers = x'ff'",
    "headers that are no JSON": "headers = '{\"a\":'",
    "failures that are no JSON": "failures = '[['",
    "a due moment that is no number": "due = 'soon'",
    "attempts that are no number": "attempt = 'one'",
    "a body that is a number": "data = 5",
    "a body that is no UTF-8": "data = CAST(x'22ff22' AS TEXT)",
    "a group that is bytes": "\"group\" = x'ff'",
    "a group that is no UTF-8": "\"group\" = CAST(x'ff' AS TEXT)",
    "an expiry that is no number": "expires = 'late'",
    "a rule that is bytes": "rule = x'ff'",
    "a run that is no UTF-8": "run = CAST(x'ff' AS TEXT)",
}
"""What is set in the row of a message."""

OF_ROWS_POSTGRES = [
    "headers = '[1]'",
    "headers = 'nonsense'",
    "failures = '[[7]]'",
]

NO_STATE = b"\xc0\xc0\xc0\xc0\xa1g"
"""State, ended, planned and asked, and the group behind them."""


def number(moment: int) -> bytes:
    return b"\xcf" + moment.to_bytes(8)


def repeating(rule: bytes, run: bytes) -> Callable[[bytes], bytes]:
    """Return what makes the record of a message that repeats of one without failures."""

    def with_rule(record: bytes) -> bytes:
        head, fields = b"\xdc\x00\x12", record.removeprefix(b"\xdc\x00\x10")
        return head + fields.replace(b"\x90\xc6", b"\x90" + rule + run + b"\xc6")

    return with_rule


WHOLE = {"priority": 3, "headers": {"tenant": "eu"}, "group": "g"}

OF_RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda record: b"",
    "of something else": lambda record: b'{"hello": "there"}',
    "bytes": lambda record: bytes(range(256)),
    "cut in its numbers": lambda record: record[:20],
    "cut in its body": lambda record: record[:-1],
    "with more behind it": lambda record: record + b" ",
    "cut in its headers": lambda record: record[: record.index(b"tenant")],
    "of an unknown state": lambda record: record.replace(NO_STATE, b"\xa4lost" + NO_STATE[1:]),
    "with headers that are no JSON": lambda record: record.replace(b'{"tenant', b'["tenant'),
    "due at no number": lambda record: record.replace(number(NOW), b"\xa1x", 1),
    "with failures that are no list": lambda record: record.replace(b"\x90\xc6", b"\xc0\xc6"),
    "with a group that is no text": lambda record: record.replace(b"\xa1g", b"\xa1\xff"),
    "with a rule that is nil": repeating(b"\xc0", b"\xa11"),
    "with a rule that is no UTF-8": repeating(b"\xa1\xff", b"\xa11"),
    "with a run that is no UTF-8": repeating(b"\xa1r", b"\xa1\xff"),
    "with a run that is a list": repeating(b"\xa1r", b"\x90"),
}
"""What becomes of a record."""


def spoil(server: Server, id: str, damage: str) -> bytes:
    """Change the record of a message on Redis; return what it is then."""
    record = server.hget(key("records"), id)
    assert isinstance(record, bytes)
    spoilt = OF_RECORDS[damage](record)
    assert spoilt != record
    server.hset(key("records"), id, spoilt)
    return spoilt


DAMAGE: Mapping[str, Mapping[str, str | Tear]] = {
    "sqlite": {
        name: f"UPDATE bide_message SET {change} WHERE id = 'm2'"
        for name, change in OF_ROWS_SQLITE.items()
    },
    "postgres": {
        change: f"UPDATE message SET {change} WHERE id = 'm2'" for change in OF_ROWS_POSTGRES
    },
    "redis": {name: partial(spoil, id="m2", damage=name) for name in OF_RECORDS},
}
"""What becomes of `m2`."""


def put(engine: Engine, way: str) -> None:
    """Put five due messages into a queue, whose claims go each of the ways that there are."""
    if way == "limited":
        engine.execute([cmd.Configure("q", limit=10, group_limit=9)], NOW)
    expires = 10 * LEASE if way == "expiring" else None
    items = [
        Item(id, b'"1"', priority=3, headers={"tenant": "eu"}, group="g", expires=expires)
        for id in IDS
    ]
    engine.execute([cmd.Put("q", items)], NOW)


def claim(engine: Engine, now: int = NOW, count: int = 9) -> Claimed:
    (reply,) = engine.execute([cmd.Claim("q", count, LEASE, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def ids(claimed: Claimed) -> list[str]:
    return [message.id for message in claimed.messages]


def get(engine: Engine, id: str, now: int = NOW) -> Message:
    (reply,) = engine.execute([cmd.Find("q", [id])], now)
    assert isinstance(reply, Found)
    (message,) = reply.messages
    assert message is not None
    return message


def ack(engine: Engine, claimed: Claimed, now: int = NOW) -> list[bool]:
    leases = [cmd.Lease(message.id, claimed.token) for message in claimed.messages]
    (reply,) = engine.execute([cmd.Ack("q", leases)], now)
    assert isinstance(reply, Outcomes)
    return [outcome.done for outcome in reply.outcomes]


def sound(engine: Engine, now: int = NOW) -> Counts:
    (counts,) = engine.execute([cmd.Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert (counts.strays, counts.recount) == (0, counts.sizes)
    assert counts.flow.put == counts.flow.gone + counts.sizes.total
    return counts


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("way", ["plain", "expiring", "limited"])
@pytest.mark.parametrize(("store", "damage"), cases(DAMAGE), indirect=["store"])
def test_a_claim_puts_a_damaged_message_aside_and_takes_the_others(
    store: TornStore, damage: str | Tear, way: str, ready: bool
) -> None:
    engine = store.engine
    put(engine, way)
    first = claim(engine, count=1) if ready else None  # the others are ready then
    store.tear(damage)
    seen = get(engine, "m2")
    claimed = claim(engine)
    assert ids(claimed) == [id for id in IDS[1 if ready else 0 :] if id != "m2"]
    assert claim(engine).messages == []
    dead = get(engine, "m2")
    assert (dead.state, dead.json, dead.error) == ("dead", False, UNREADABLE)
    for each in (claimed, first):
        assert each is None or all(ack(engine, each))
    claim(engine)  # a limited queue puts the others in line again
    counts = sound(engine)
    assert (counts.flow.died, counts.sizes.dead) == (1, 1)
    if store.kind == "postgres":  # notes the attempt in the row, which stays as it is otherwise
        (purged,) = engine.execute([cmd.Purge("q", "dead", ids=["m2"])], NOW)
        assert isinstance(purged, Outcomes)
        assert purged.outcomes[0].done
    else:
        assert dead.data == seen.data
        engine.execute([cmd.Revive("q", ["m2"])], NOW)
        assert [message.data for message in claim(engine).messages] == [dead.data]
    sound(engine)


@pytest.mark.parametrize("store", DAMAGE, indirect=True)
def test_claims_of_one_go_on_to_the_next(store: TornStore) -> None:
    put(store.engine, "plain")
    assert ids(claim(store.engine, count=2)) == ["m0", "m1"]
    store.tear(next(iter(DAMAGE[store.kind].values())))
    claims = [ids(claim(store.engine, count=1)) for _ in range(2)]
    assert ["m3"] in claims


@pytest.mark.parametrize("way", ["plain", "expiring", "limited"])
@pytest.mark.parametrize(("store", "damage"), cases(DAMAGE), indirect=["store"])
def test_a_message_that_is_damaged_while_it_is_leased_is_put_aside_when_the_lease_ends(
    store: TornStore, damage: str | Tear, way: str
) -> None:
    engine, later = store.engine, NOW + LEASE
    put(engine, way)
    held = claim(engine)
    store.tear(damage)
    assert sorted(ids(claim(engine, later))) == [id for id in IDS if id != "m2"]
    assert not any(ack(engine, held, later))
    assert get(engine, "m2", later).state == "dead"
    claim(engine, later)
    sound(engine, later)


@pytest.mark.parametrize(("store", "damage"), cases(DAMAGE), indirect=["store"])
def test_whoever_reads_sees_a_damaged_message_and_the_others(
    store: TornStore, damage: str | Tear
) -> None:
    engine = store.engine
    put(engine, "plain")
    store.tear(damage)
    seen = get(engine, "m2")
    assert (seen.state, seen.error) == ("dead", UNREADABLE)
    (page,) = engine.execute([cmd.Scan("q")], NOW)
    assert isinstance(page, Page)
    assert sorted(message.id for message in page.messages) == IDS
    (page,) = engine.execute([cmd.Scan("q", "ready")], NOW)
    assert isinstance(page, Page)
    assert {message.id for message in page.messages} >= set(IDS) - {"m2"}
    (explained,) = engine.execute([cmd.Explain("q", "m1")], NOW)
    assert isinstance(explained, Explained)
    assert explained.state == "ready"
    assert ids(claim(engine, count=1)) == ["m0"]
