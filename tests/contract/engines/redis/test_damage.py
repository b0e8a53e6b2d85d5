"""What something else or half a change left is found, holds nothing up, and is not lost."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import decode_lease
from bide.model import commands as cmd
from bide.model.commands import (
    Ack,
    Cancel,
    Configure,
    Count,
    Edit,
    Extend,
    Find,
    NextRun,
    Put,
    Renew,
    RetryCommand,
    Scan,
    Where,
)
from bide.model.ended import Ended, Ending
from bide.model.errors import NotAStore, StoreCorrupt
from bide.model.message import UNREADABLE, Item, Message
from bide.model.replies import (
    Affected,
    Claimed,
    Counts,
    EndedPage,
    Explained,
    Found,
    Outcomes,
    Page,
)
from tests.contract.engines.redis.claims import LEASE, MANY, NOW, claim, key, of, put, settle, sound
from tests.contract.engines.test_damage import OF_RECORDS, number, spoil
from tests.effort import effort
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

Server = client_library.Redis
RECORD = b"\xdc\x00\x10"
"""How a record begins: an array of 16."""

NOTED = b"\x99"
"""How a lease begins whose worker was asked to stop, or has reported."""

WHOLE = {"priority": 3, "headers": {"tenant": "eu"}, "group": "g"}


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


@pytest.mark.parametrize("damage", OF_RECORDS)
def test_whoever_reads_sees_the_bytes_of_a_damaged_message_and_the_others(
    engine: RedisEngine, server: Server, ids: list[str], damage: str
) -> None:
    spoilt = spoil(server, "m2", damage)
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
    spoilt = spoil(server, "m2", damage)
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


def test_a_rule_deletes_damaged_messages(
    engine: RedisEngine, server: Server, ids: list[str]
) -> None:
    engine.execute([cmd.Configure("q", history=LEASE)], NOW)
    spoil(server, "m2", "empty")
    (reply,) = engine.execute([cmd.Cancel("q", where=cmd.Where())], NOW)
    assert reply == Affected(5)
    assert server.exists(key("records"), key("delayed"), key("ready")) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"nobody knows",
        lambda lease: lease[:-1],
        lambda lease: lease.replace(number(NOW + LEASE), b"\xc0"),
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


def list_ended(engine: RedisEngine, how: Ending | None) -> list[Ended]:
    """Return the messages that have ended, a page of one after the other."""
    messages: list[Ended] = []
    command = cmd.ListEnded("q", how=how, limit=1)
    while True:
        (page,) = engine.execute([command], NOW + 9)
        assert isinstance(page, EndedPage)
        messages += page.messages
        if page.cursor is None:
            return messages
        command = msgspec.structs.replace(command, cursor=page.cursor)


def test_what_a_queue_remembers_may_be_damaged(engine: RedisEngine, server: Server) -> None:
    engine.execute([cmd.Configure("q", history=LEASE)], NOW)
    put(engine, 3)
    for place, id in enumerate(["m0000", "m0001", "m0002"]):
        engine.execute([cmd.Cancel("q", [id])], NOW + place)
    server.hset(key("ended"), "m0000", "something else")
    server.hset(key("ended"), "m0001", b"\x91\x92\x01\x02")  # an array, of an end that is too short
    with pytest.raises(StoreCorrupt, match="what queue 'q' remembers of 'm0000'"):
        engine.execute([cmd.History("q", "m0000")], NOW)
    listed = {how: list_ended(engine, how) for how in (None, "dead", "cancelled")}
    unreadable = [Ended.unreadable("m0000", NOW), Ended.unreadable("m0001", NOW + 1)]
    assert listed[None][:2] == unreadable
    assert listed["dead"] == unreadable[:1]  # of the other one, Redis reads another way to end
    assert [ended.id for ended in listed["cancelled"]] == ["m0002"]
    assert listed[None][2:] == listed["cancelled"]
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


Break = Callable[[Server, bytes], object]  # gets a member of "ready"

# What it adds to the strays: its places, and one for each pair of totals that no longer agree.
BROKEN: dict[str, tuple[Break, int]] = {
    "a place without a record": (lambda s, member: s.hdel(key("records"), member[12:]), 2),
    "one message in two places": (lambda s, member: s.zadd(key("kept"), {member: NOW}), 3),
    "a lease of a message that waits": (lambda s, m: s.hset(key("leases"), m[12:], "x"), 3),
    "a place without its rank": (lambda s, member: s.zincrby(key("ready"), 1, member), 1),
}


def test_a_slice_of_large_messages_is_small(engine: RedisEngine, server: Server) -> None:
    large = [Item(f"m{number}", b"x" * 1_000_000, json=False) for number in range(20)]
    engine.execute([Put("q", large)], NOW)
    before = server.info("commandstats")["cmdstat_fcall"]["calls"]
    sound(engine)
    assert server.info("commandstats")["cmdstat_fcall"]["calls"] - before >= 6


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("place", [0, 210, 299])
def test_what_does_not_fit_together_is_counted(
    engine: RedisEngine, server: Server, broken: str, place: int
) -> None:
    put(engine, MANY + 1)
    claim(engine, 1)  # moves the others from delayed to ready
    claim(engine, 1, NOW + LEASE)
    sound(engine, NOW + LEASE)
    spoil, strays = BROKEN[broken]
    (member,) = server.zrange(key("ready"), place, place)
    assert isinstance(member, bytes)
    spoil(server, member)
    (counts,) = engine.execute([Count("q", recount=True)], NOW + LEASE)
    assert isinstance(counts, Counts)
    assert counts.strays == strays


Change = Callable[[], object]

DAY = 86_400_000


@pytest.fixture(scope="module")
def one_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Provide the server of all tests that look into the append-only file."""
    server = RedisServer(tmp_path_factory.mktemp("disk"), appendonly="yes", appendfsync="no")
    with server.client() as client:
        client.config_set("auto-aof-rewrite-percentage", 0)
    yield server
    server.stop()


@pytest.fixture
def disk(one_disk: RedisServer) -> RedisServer:
    with one_disk.client() as client:
        client.flushall()
    return one_disk


@pytest.fixture
def on_disk(open_engine: Open, disk: RedisServer) -> RedisEngine:
    return open_engine(disk.url)


def _claiming(on_disk: RedisEngine) -> Change:
    put(on_disk, 2 * MANY)
    claim(on_disk)
    return lambda: claim(on_disk, now=NOW + 1)


def _claiming_few(on_disk: RedisEngine) -> Change:
    put(on_disk, MANY)
    return lambda: claim(on_disk, 50)


def _acking(on_disk: RedisEngine) -> Change:
    put(on_disk, 2 * MANY)
    claimed = claim(on_disk)
    claim(on_disk, now=NOW + 1)
    return lambda: on_disk.execute([Ack("q", of(claimed))], NOW + 2)


def _acking_remembered(on_disk: RedisEngine) -> Change:
    on_disk.execute([Configure("q", history=LEASE, result_ttl=LEASE)], NOW)
    put(on_disk, MANY)
    held = of(claim(on_disk))[:5]
    return lambda: on_disk.execute([Ack("q", held, [b"1"] * len(held))], NOW + 1)


def _acking_one(on_disk: RedisEngine) -> Change:
    put(on_disk, MANY)
    claimed = claim(on_disk)
    return lambda: on_disk.execute([Ack("q", of(claimed)[:1])], NOW + 1)


def _retrying(on_disk: RedisEngine) -> Change:
    put(on_disk, MANY)
    claimed = claim(on_disk)
    return lambda: on_disk.execute([RetryCommand("q", of(claimed)[:3], 5, "later")], NOW + 1)


def _extending(on_disk: RedisEngine) -> Change:
    put(on_disk, MANY)
    claimed = claim(on_disk)
    return lambda: on_disk.execute([Extend("q", of(claimed)[:3], 2 * LEASE)], NOW + 1)


def _lapsing(on_disk: RedisEngine) -> Change:
    put(on_disk, MANY)
    claim(on_disk)
    return lambda: claim(on_disk, 10, NOW + LEASE)


def _succeeded(on_disk: RedisEngine) -> Claimed:
    put(on_disk, MANY, group="g")
    claimed = claim(on_disk)
    items = [Item(m.id, b"2", delay=5, group="h", latest=9) for m in claimed.messages[:3]]
    on_disk.execute([Put("q", items, "replace")], NOW + 1)
    return claimed


def _following(on_disk: RedisEngine) -> Change:
    claimed = _succeeded(on_disk)
    return lambda: on_disk.execute([Ack("q", of(claimed)[:3])], NOW + 2)


def _following_lapsed(on_disk: RedisEngine) -> Change:
    _succeeded(on_disk)
    return lambda: claim(on_disk, 10, NOW + LEASE)


LIMITED = Configure("q", limit=9, group_limit=5)


def _repeating(on_disk: RedisEngine) -> Claimed:
    items = [Item(f"m{n:04}", b"1", group="g", rule="r", run="1") for n in range(6)]
    on_disk.execute([Put("q", items)], NOW)
    return claim(on_disk)


def _renewing(on_disk: RedisEngine) -> Change:
    claimed = _repeating(on_disk)
    following = [NextRun(NOW + 9, "2"), NextRun(NOW, "2"), None]
    return lambda: on_disk.execute([Renew("q", of(claimed)[:3], following)], NOW + 1)


def _limited_renewing(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    return _renewing(on_disk)


def _renewing_late(on_disk: RedisEngine) -> Change:
    claimed = _repeating(on_disk)
    following = [NextRun(NOW + 9, "2"), None, None]
    return lambda: on_disk.execute([Renew("q", of(claimed)[:3], following, "expired")], NOW + 1)


def _acking_runs(on_disk: RedisEngine) -> Change:
    claimed = _repeating(on_disk)
    return lambda: on_disk.execute([Ack("q", of(claimed)[:3])], NOW + 1)


def _ending_series(on_disk: RedisEngine) -> Change:
    claimed = _repeating(on_disk)
    ids = [message.id for message in claimed.messages]
    cancels = [Cancel("q", ids[:2]), Cancel("q", ids[2:4], running=True)]
    return lambda: on_disk.execute(cancels, NOW + 1)


def _lapsing_runs(on_disk: RedisEngine) -> Change:
    _repeating(on_disk)
    return lambda: claim(on_disk, 3, NOW + LEASE)


def _expiring(on_disk: RedisEngine) -> Change:
    items = [Item(f"n{i}", b"1", expires=1 if i % 2 else None) for i in range(6)]
    on_disk.execute([Put("q", items)], NOW)
    return lambda: claim(on_disk, 4, NOW + 2)


def _limited_expiring(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    return _expiring(on_disk)


def _limited_claiming(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    put(on_disk, MANY, group="g")
    put(on_disk, 3, "n")
    return lambda: claim(on_disk, 7)


def _limited_sorting(on_disk: RedisEngine) -> Change:
    on_disk.execute([Configure("q", limit=1_000)], NOW)
    put(on_disk, 1_100, group="g")
    put(on_disk, 3, "n", "h")
    put(on_disk, 3, "o", "i")
    return lambda: claim(on_disk, 7)


def _limited_acking(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    put(on_disk, 30, group="g")
    put(on_disk, 30, "n", "h")
    claimed = claim(on_disk, 8)
    return lambda: on_disk.execute([Ack("q", of(claimed))], NOW + 1)


def _limited_lapsing(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    put(on_disk, 30, group="g")
    claim(on_disk)
    return lambda: claim(on_disk, 1, NOW + LEASE)


def _limited_cancelling(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    put(on_disk, 30, group="g")
    claim(on_disk, 1)
    return lambda: on_disk.execute(
        [Edit("q", ["m0004"], group="h"), Cancel("q", ["m0005", "m0006"])], NOW
    )


def _limiting(on_disk: RedisEngine) -> Change:
    put(on_disk, 30, group="g")
    claim(on_disk, 3)
    return lambda: on_disk.execute([LIMITED], NOW)


def _replacing(on_disk: RedisEngine) -> Change:
    put(on_disk, 3, group="g")
    items = [Item(f"m{n:04}", b"2", delay=5, priority=9, group="h") for n in range(3)]
    return lambda: on_disk.execute([Put("q", items, "replace")], NOW + 1)


def _sweeping(on_disk: RedisEngine) -> Change:
    put(on_disk, 6, group="g")
    put(on_disk, 6, "n")
    claim(on_disk, 2)
    on_disk.execute([Put("q", [Item("o1", b"1", delay=9)])], NOW)
    rules = [Cancel("q", where=Where(group="g")), Cancel("q", where=Where(before=NOW + 5))]
    return lambda: on_disk.execute(rules, NOW + 1)


def _limited_sweeping(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    return _sweeping(on_disk)


def _limited_following(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    put(on_disk, 9, group="g")
    claimed = claim(on_disk)
    items = [Item(m.id, b"2", delay=5, group="h", latest=9) for m in claimed.messages[:3]]
    on_disk.execute([Put("q", items, "replace")], NOW + 1)
    return lambda: on_disk.execute([Ack("q", of(claimed)[:3])], NOW + 2)


def _stopping(on_disk: RedisEngine) -> Change:
    claimed = _succeeded(on_disk)
    ids = [message.id for message in claimed.messages]
    return lambda: on_disk.execute([Cancel("q", ids[1:6], running=True)], NOW + 2)


def _stopped(on_disk: RedisEngine) -> Claimed:
    """Some who are to stop have a successor, from a put after that."""
    put(on_disk, MANY, group="g")
    claimed = claim(on_disk)
    ids = [message.id for message in claimed.messages[:6]]
    items = [Item(id, b"2", delay=5, group="h", latest=9) for id in ids[:3]]
    on_disk.execute([Cancel("q", ids, running=True), Put("q", items, "replace")], NOW + 1)
    return claimed


def _ending_stopped(on_disk: RedisEngine) -> Change:
    claimed = _stopped(on_disk)
    return lambda: on_disk.execute([RetryCommand("q", of(claimed)[1:8], 5, "later")], NOW + 2)


def _lapsing_stopped(on_disk: RedisEngine) -> Change:
    _stopped(on_disk)
    return lambda: claim(on_disk, 10, NOW + LEASE)


def _putting_stopped(on_disk: RedisEngine) -> Change:
    _stopped(on_disk)
    items = [Item(f"m{n:04}", b"2", delay=5, group="h") for n in range(2, 6)]
    return lambda: on_disk.execute([Put("q", items)], NOW + LEASE)


def _limited_lapsing_stopped(on_disk: RedisEngine) -> Change:
    on_disk.execute([LIMITED], NOW)
    _stopped(on_disk)
    return lambda: claim(on_disk, 1, NOW + LEASE)


def written(server: RedisServer) -> bytes:
    """Return the append-only file."""
    (file,) = Path(server.folder).glob("appendonlydir/*.incr.aof")
    return file.read_bytes()


def writes(data: bytes) -> list[list[bytes]]:
    """Return the commands in a part of an append-only file that change something."""
    commands = []
    at = 0

    def line() -> bytes:
        nonlocal at
        start, at = at, data.index(b"\r\n", at) + 2
        return data[start : at - 2]

    while at < len(data):
        words = []
        for _ in range(int(line()[1:])):
            size = int(line()[1:])
            words.append(data[at : at + size])
            at += size + 2
        commands.append(words)
    return [words for words in commands if words[0].upper() not in (b"MULTI", b"EXEC", b"SELECT")]


@pytest.mark.parametrize(
    "begin",
    [
        _claiming,
        _claiming_few,
        _acking,
        _acking_remembered,
        _acking_one,
        _retrying,
        _extending,
        _lapsing,
        _expiring,
        _limited_expiring,
        _following,
        _following_lapsed,
        _limited_claiming,
        _limited_sorting,
        _limited_acking,
        _limited_lapsing,
        _limited_cancelling,
        _limiting,
        _replacing,
        _sweeping,
        _limited_sweeping,
        _limited_following,
        _stopping,
        _ending_stopped,
        _lapsing_stopped,
        _putting_stopped,
        _limited_lapsing_stopped,
        _renewing,
        _limited_renewing,
        _renewing_late,
        _acking_runs,
        _ending_series,
        _lapsing_runs,
    ],
    ids=lambda begin: begin.__name__[1:],
)
def test_a_script_may_be_cut_behind_any_of_its_writes(
    disk: RedisServer, open_engine: Open, on_disk: RedisEngine, begin: Callable[..., Change]
) -> None:
    server = disk.client()
    change = begin(on_disk)
    names: list[bytes] = server.keys("*")  # type: ignore[assignment]
    before = {name: server.dump(name) for name in names}
    known = len(written(disk))
    change()
    done = writes(written(disk)[known:])
    assert len(done) > 3
    step, parts = effort(6, 1), effort(3, 6)
    for cut in [*range(0, min(len(done), 24), step), *range(24, len(done), 1 + len(done) // parts)]:
        server.flushall()
        for name, dumped in before.items():
            server.restore(name, 0, dumped)  # type: ignore[arg-type]
        for words in done[:cut]:
            server.execute_command(*words)  # type: ignore[no-untyped-call]
        _all_comes_once(open_engine(disk.url), server)


def _all_comes_once(on_disk: RedisEngine, server: "client_library.Redis") -> None:
    """See that everything which has a record comes or has expired, and nothing stays behind.

    What was to stop comes no more, unless it has a successor.
    """
    there = {name.decode() for name in server.hkeys(key("records"))}  # type: ignore[union-attr]
    leases: dict[bytes, bytes] = server.hgetall(key("leases"))  # type: ignore[assignment]
    there -= {
        id.decode()
        for id, lease in leases.items()
        if lease[:1] == NOTED and decode_lease(lease).successor is None
    }
    on_disk.execute([Count("q", recount=True), Scan("q", "leased"), Find("q", ["m0001"])], NOW + 5)
    now = NOW + 10 * LEASE
    found: Counter[str] = Counter()
    while (claimed := claim(on_disk, 400, now)).messages or claimed.behind:
        found.update(message.id for message in claimed.messages)
        series = [message.id for message in claimed.messages if message.rule is not None]
        others = [message.id for message in claimed.messages if message.rule is None]
        acks: list[cmd.Command] = [Ack("q", of(claimed, *others))] if others else []
        if series:
            acks.append(Renew("q", of(claimed, *series), [None] * len(series)))
        for acked in on_disk.execute(acks, now):
            assert isinstance(acked, Outcomes)
            assert all(acked.outcomes)
        now += 1
    kept = {member[12:].decode() for member in server.zrange(key("kept"), 0, -1)}  # type: ignore[union-attr]
    assert set(found) == there - kept
    assert set(found.values()) <= {1}
    (counts,) = on_disk.execute([Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert counts.strays == 0
    on_disk.execute([Configure("q", limit=0, group_limit=0)], now + DAY)  # nothing is kept longer
    parts = ("records", "leases", "leased", "delayed", "ready", "lines", "heads", "tags")
    assert server.exists(*map(key, parts)) == 0
    ids = put(on_disk, MANY)
    assert [message.id for message in claim(on_disk, now=now).messages] == ids
