"""What something else has written to the keys of bide: it holds nothing up, and is not lost."""

from collections.abc import Callable

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model import commands as cmd
from bide.model.errors import NotAStore, StoreCorrupt
from bide.model.message import UNREADABLE, Item, Message
from bide.model.replies import Affected, Claimed, Explained, Found, Page
from tests.engines.redis.claims import LEASE, NOW, claim, key, of, put, settle, sound

Server = client_library.Redis
RECORD = b"\xdc\x00\x10"
"""How a record begins: an array of 16."""

NO_STATE = b"\xc0\xc0\xc0\xc0\xa1g"
"""State, ended, planned and asked, and the group behind them."""


def _number(moment: int) -> bytes:
    return b"\xcf" + moment.to_bytes(8)


WHOLE = {"priority": 3, "headers": {"tenant": "eu"}, "group": "g"}

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda record: b"",
    "of something else": lambda record: b'{"hello": "there"}',
    "bytes": lambda record: bytes(range(256)),
    "cut in its numbers": lambda record: record[:20],
    "cut in its body": lambda record: record[:-1],
    "with more behind it": lambda record: record + b" ",
    "cut in its headers": lambda record: record[: record.index(b"tenant")],
    "of an unknown state": lambda record: record.replace(NO_STATE, b"\xa4lost" + NO_STATE[1:]),
    "with headers that are no JSON": lambda record: record.replace(b'{"tenant', b'["tenant'),
    "due at no number": lambda record: record.replace(_number(NOW), b"\xa1x", 1),
    "with failures that are no list": lambda record: record.replace(b"\x90\xc6", b"\xc0\xc6"),
    "with a group that is no text": lambda record: record.replace(b"\xa1g", b"\xa1\xff"),
}
"""What becomes of a record."""


def _spoil(server: Server, id: str, damage: str) -> bytes:
    record = server.hget(key("records"), id)
    assert isinstance(record, bytes)
    spoilt = DAMAGE[damage](record)
    assert spoilt != record
    server.hset(key("records"), id, spoilt)
    return spoilt


def _get(engine: RedisEngine, id: str, now: int = NOW) -> Message:
    (reply,) = engine.execute([cmd.Find("q", [id])], now)
    assert isinstance(reply, Found)
    (message,) = reply.messages
    assert message is not None
    return message


def _names(engine: RedisEngine, *args: object) -> list[str]:
    (page,) = engine.execute([cmd.Scan("q", *args)], NOW)  # type: ignore[arg-type]
    assert isinstance(page, Page)
    return sorted(message.id for message in page.messages)


@pytest.fixture(params=["plain", "expiring", "limited"])
def ids(request: pytest.FixtureRequest, engine: RedisEngine) -> list[str]:
    """Five due messages of a queue, whose claims go each of the ways that there are."""
    options: dict[str, object] = dict(WHOLE)
    if request.param == "expiring":
        options["expires"] = LEASE * 10
    if request.param == "limited":
        engine.execute([cmd.Configure("q", limit=10, group_limit=5)], NOW)
    ids = [f"m{number}" for number in range(5)]
    engine.execute([cmd.Put("q", [Item(id, b"1", **options) for id in ids])], NOW)  # type: ignore[arg-type]
    return ids


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_claim_puts_a_damaged_message_aside_with_its_bytes_and_takes_the_others(
    engine: RedisEngine, server: Server, ids: list[str], damage: str
) -> None:
    spoilt = _spoil(server, "m2", damage)
    assert _get(engine, "m2").data == spoilt
    claimed = claim(engine)
    others = [id for id in ids if id != "m2"]
    assert [message.id for message in claimed.messages] == others
    assert claim(engine).messages == []
    dead = _get(engine, "m2")
    assert (dead.state, dead.data, dead.json) == ("dead", spoilt, False)
    assert dead.error == UNREADABLE
    assert _names(engine, "dead") == ["m2"]
    assert all(settle(engine, cmd.Ack("q", of(claimed))))
    claim(engine)  # a limited queue lines up anew what it has
    assert sound(engine).flow.died == 1
    assert settle(engine, cmd.Revive("q", ["m2"]))[0]
    assert [m.data for m in claim(engine).messages] == [spoilt]
    sound(engine)


def test_a_claim_of_one_goes_on_to_the_next(engine: RedisEngine, server: Server) -> None:
    put(engine, 3)
    _spoil(server, "m0000", "empty")
    first = claim(engine, 1)
    assert (first.messages, first.next) == ([], 0)
    assert [message.id for message in claim(engine, 1).messages] == ["m0001"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_whoever_reads_sees_the_bytes_of_a_damaged_message_and_the_others(
    engine: RedisEngine, server: Server, ids: list[str], damage: str
) -> None:
    spoilt = _spoil(server, "m2", damage)
    for where in ((), ("ready",), ("ready", cmd.Where(group="g")), (None, cmd.Where(group="g"))):
        assert set(_names(engine, *where)) >= set(ids) - {"m2"}
    assert "m2" in _names(engine)
    pages, cursor = [], None
    while True:
        (page,) = engine.execute([cmd.Scan("q", limit=1, cursor=cursor)], NOW)
        assert isinstance(page, Page)
        pages += [message.id for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(pages) == ids
    seen = _get(engine, "m2")
    assert (seen.state, seen.data, seen.error) == ("dead", spoilt, UNREADABLE)
    (told,) = engine.execute([cmd.Explain("q", "m2")], NOW)
    assert isinstance(told, Explained)
    assert told.state == "dead"
    engine.execute([cmd.History("q", "m2")], NOW)


@pytest.mark.parametrize("damage", ["empty", "bytes", "cut in its numbers"])
def test_a_change_of_a_damaged_message_says_what_is_wrong_and_changes_the_others(
    engine: RedisEngine, server: Server, ids: list[str], damage: str
) -> None:
    spoilt = _spoil(server, "m2", damage)
    for command in (
        cmd.Cancel("q", ["m2"]),
        cmd.Reschedule("q", ["m2"], delay=5),
        cmd.BuryCommand("q", ids=["m2"]),
        cmd.Edit("q", ["m2"], data=b"2"),
        cmd.Put("q", [Item("m2", b"2")]),
        cmd.Put("q", [Item("m2", b"2")], "replace"),
    ):
        with pytest.raises(StoreCorrupt, match="the record of 'm2' in queue 'q' cannot be read"):
            engine.execute([command], NOW)
    with pytest.raises(StoreCorrupt, match="carried out for its other messages"):
        engine.execute([cmd.Cancel("q", ["m1", "m2", "m3"])], NOW)
    assert [message.id for message in claim(engine).messages] == ["m0", "m4"]
    assert _get(engine, "m2").data == spoilt


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_message_that_is_damaged_while_it_is_leased_is_put_aside_when_the_lease_ends(
    engine: RedisEngine, server: Server, ids: list[str], damage: str
) -> None:
    held = claim(engine)
    spoilt = _spoil(server, "m2", damage)
    claimed = claim(engine, now=NOW + LEASE)
    assert sorted(message.id for message in claimed.messages) == [id for id in ids if id != "m2"]
    assert not any(settle(engine, cmd.Ack("q", of(held)), NOW + LEASE))
    dead = _get(engine, "m2", NOW + LEASE)
    assert dead.state == "dead"
    assert dead.data.startswith(spoilt[:12])  # the failure may have been written into its record
    claim(engine, now=NOW + LEASE)
    sound(engine, NOW + LEASE)


def test_a_rule_deletes_damaged_messages(
    engine: RedisEngine, server: Server, ids: list[str]
) -> None:
    engine.execute([cmd.Configure("q", history=LEASE)], NOW)
    _spoil(server, "m2", "empty")
    (reply,) = engine.execute([cmd.Cancel("q", where=cmd.Where())], NOW)
    assert reply == Affected(5)
    assert server.exists(key("records"), key("delayed"), key("ready")) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"nobody knows",
        lambda lease: lease[:-1],
        lambda lease: lease.replace(_number(NOW + LEASE), b"\xc0"),
    ],
)
def test_a_damaged_lease_ends_at_once_or_when_it_was_to_end(
    engine: RedisEngine, server: Server, damage: Callable[[bytes], bytes]
) -> None:
    put(engine, 3)
    held = claim(engine)
    lease = server.hget(key("leases"), "m0001")
    assert isinstance(lease, bytes)
    server.hset(key("leases"), "m0001", damage(lease))
    assert not any(settle(engine, cmd.Ack("q", of(held, "m0001"))))
    later = claim(engine, now=NOW + LEASE)
    assert sorted(m.id for m in later.messages) == ["m0000", "m0001", "m0002"]
    assert all(settle(engine, cmd.Ack("q", of(later)), NOW + LEASE))
    sound(engine, NOW + LEASE)


def test_an_unreadable_successor_is_a_dead_letter(engine: RedisEngine, server: Server) -> None:
    put(engine, 1)
    held = claim(engine)
    settle(engine, cmd.Put("q", [Item("m0000", b"2", latest=5)], "replace"))
    lease = server.hget(key("leases"), "m0000")
    assert isinstance(lease, bytes)
    server.hset(key("leases"), "m0000", lease[: lease.index(RECORD)] + b"nothing")
    assert all(settle(engine, cmd.Ack("q", of(held))))
    dead = _get(engine, "m0000")
    assert (dead.state, dead.data) == ("dead", b"nothing")
    sound(engine)


def test_places_without_a_record_are_passed_over(engine: RedisEngine, server: Server) -> None:
    put(engine, 2)
    server.zadd(key("delayed"), {"": NOW * 256, "short": NOW * 256, "0" * 12 + "gone": NOW * 256})
    assert [message.id for message in claim(engine).messages] == ["m0000", "m0001"]
    assert _names(engine) == ["m0000", "m0001"]


def test_a_queue_whose_settings_were_lost_goes_on(engine: RedisEngine, server: Server) -> None:
    put(engine, 3)
    held = claim(engine, 1)
    server.delete(key("meta"))
    claimed = claim(engine)
    assert [message.id for message in claimed.messages] == ["m0001", "m0002"]
    assert all(settle(engine, cmd.Ack("q", of(claimed) + of(held))))
    put(engine, 2, "n")
    assert [message.id for message in claim(engine).messages] == ["n0000", "n0001"]
    sound(engine)


def test_settings_that_cannot_be_read_say_which_key(engine: RedisEngine, server: Server) -> None:
    put(engine, 3)
    claiming, counting, putting = cmd.Claim("q", 1, LEASE, "w"), cmd.Count("q"), cmd.Put("q", [])
    readers: dict[str, tuple[cmd.Command, ...]] = {
        "token": (claiming,),
        "change": (claiming, counting, putting),
        "seq": (counting, putting),
        "put": (counting, putting),
        "acked": (counting,),
    }
    for field, commands in readers.items():
        kept = server.hget(key("meta"), field)
        server.hset(key("meta"), field, "many")
        for command in commands:
            with pytest.raises(StoreCorrupt, match=r"CORRUPT bide:\{q#0\}:meta"):
                engine.execute([command], NOW)
        server.hset(key("meta"), field, kept or "0")
    engine.execute([cmd.Configure("q", keep=LEASE)], NOW)
    assert all(settle(engine, cmd.Ack("q", of(claim(engine, 1)))))
    server.hset(key("meta"), "keep", "long")
    with pytest.raises(StoreCorrupt, match=r"CORRUPT bide:\{q#0\}:meta"):
        engine.execute([claiming], NOW)
    server.delete(key("meta"))
    assert len(claim(engine).messages) == 2


@pytest.mark.parametrize("part", ["meta", "records", "delayed", "leases", "leased", "ended"])
def test_a_key_of_another_type_says_so(engine: RedisEngine, server: Server, part: str) -> None:
    engine.execute([cmd.Configure("q", history=LEASE)], NOW)
    put(engine, 2)
    held = claim(engine, 1)
    server.set(key(part), "something else")
    claiming, burying = cmd.Claim("q", 1, LEASE, "w"), cmd.BuryCommand("q", of(held))
    with pytest.raises(NotAStore, match="holds something that bide did not store"):
        engine.execute([burying if part == "ended" else claiming], NOW)


def test_what_a_queue_remembers_may_be_damaged(engine: RedisEngine, server: Server) -> None:
    engine.execute([cmd.Configure("q", history=LEASE)], NOW)
    put(engine, 1)
    settle(engine, cmd.Cancel("q", ["m0000"]))
    server.hset(key("ended"), "m0000", "something else")
    with pytest.raises(StoreCorrupt, match="what queue 'q' remembers of 'm0000'"):
        engine.execute([cmd.History("q", "m0000")], NOW)
    put(engine, 1)
    assert all(settle(engine, cmd.Cancel("q", ["m0000"])))


def test_several_shards_go_on_without_a_damaged_message(
    open_engine: Callable[[str], RedisEngine], server: Server, url: str
) -> None:
    engine = open_engine(f"{url}{'&' if '?' in url else '?'}shards=3")
    put(engine, 12)
    for shard in range(3):
        records = f"bide:{{q#{shard}}}:records"
        for id in server.hkeys(records)[:1]:
            server.hset(records, id, "x")
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(12):
        (page,) = engine.execute([cmd.Scan("q", "ready", limit=1, cursor=cursor)], NOW)
        assert isinstance(page, Page)
        seen += [message.id for message in page.messages]
        cursor = page.cursor
    assert len(set(seen)) == 12
    claimed: list[str] = []
    for _ in range(3):
        (reply,) = engine.execute([cmd.Claim("q", 12, LEASE, "w")], NOW)
        assert isinstance(reply, Claimed)
        claimed += [message.id for message in reply.messages]
    assert len(claimed) == 9
    assert len(_names(engine, "dead")) == 3


def test_many_damaged_messages_are_put_aside_at_once(engine: RedisEngine, server: Server) -> None:
    ids = put(engine, 700)
    server.hset(key("records"), mapping=dict.fromkeys(ids[:650], "x"))
    claimed = claim(engine, 700)
    assert [message.id for message in claimed.messages] == ids[650:]
    assert sound(engine).sizes.dead == 650
