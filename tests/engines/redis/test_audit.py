"""The audit on Redis: what half a change or a stranger left is found, in sets of any size."""

from collections.abc import Callable

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import Ack, Configure, Count, Put
from bide.model.message import Item
from bide.model.replies import Counts
from bide.queue.results import Audit
from tests.engines.redis.claims import LEASE, MANY, NOW, claim, key, of, put, sound

HOUR = 3_600_000
DUE = (NOW + HOUR).to_bytes(8)
LIMITS = Configure("q", limit=6, group_limit=1)

Server = client_library.Redis
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


def _member(server: Server, part: str, ends: str) -> bytes:
    """Return the member of a set that ends so: of a set of messages, with their id."""
    members: list[bytes] = server.zrange(key(part), 0, -1)  # type: ignore[assignment]
    (found,) = (member for member in members if member.endswith(ends.encode()))
    return found


def _remove(part: str, id: str) -> Callable[[Server], object]:
    return lambda server: server.zrem(key(part), _member(server, part, id))


def _rank(part: str, id: str) -> Callable[[Server], object]:
    return lambda server: server.zincrby(key(part), 1, _member(server, part, id))


def _record(id: str, text: bytes, other: bytes) -> Callable[[Server], object]:
    def write(server: Server) -> None:
        record = server.hget(key("records"), id)
        assert isinstance(record, bytes)
        assert text in record
        server.hset(key("records"), id, record.replace(text, other, 1))

    return write


def _lease(id: str, *, write: Callable[[bytes], bytes]) -> Callable[[Server], object]:
    def spoil(server: Server) -> None:
        lease = server.hget(key("leases"), id)
        assert isinstance(lease, bytes)
        server.hset(key("leases"), id, write(lease))

    return spoil


OF_MESSAGES: dict[str, Callable[[Server], object]] = {
    "the counter of puts": lambda s: s.hincrby(key("meta"), "put", 1),
    "a counter of ends": lambda s: s.hincrby(key("meta"), "acked", 1),
    "a message that is gone": lambda s: s.hdel(key("records"), "a2"),
    "a leased message that is gone": lambda s: s.hdel(key("records"), "a1"),
    "a message in no state": _remove("ready", "a2"),
    "a delayed message in no state": _remove("delayed", "later"),
    "a kept message in no state": _remove("kept", "k1"),
    "a leased message in two states": lambda s: s.zadd(
        key("ready"), {_member(s, "leased", "a1"): NOW}
    ),
    "a rank of a delayed message": _rank("delayed", "later"),
    "a rank of a ready message": _rank("ready", "a2"),
    "a rank of a leased message": _rank("leased", "a1"),
    "a rank of a kept message": _rank("kept", "k1"),
    "a rank of a dead letter": _rank("kept", "d1"),
    "a due time without its rank": _record("later", DUE, (NOW + HOUR + 1).to_bytes(8)),
    "another order of putting": _record("later", b"0000", b"000f"),
    "a dead letter that has not ended": _record("d1", b"dead\xcf" + NOW.to_bytes(8), b"dead\xc0"),
    "a group that does not name its message": _remove("groups", "later"),
    "a message of another group": _record("later", b"\xa1l", b"\xa1m"),
    "a message that cannot be read": lambda s: s.hset(key("records"), "a2", "x"),
    "a lease that is gone": lambda s: s.hdel(key("leases"), "a1"),
    "a lease that does not end": _remove("leased", "a1"),
    "a lease that cannot be read": _lease("a1", write=lambda lease: b"nobody"),
    "a lease of another message": _lease(
        "a1", write=lambda lease: lease[:2] + b"0" * 12 + lease[14:]
    ),
    "a lease of no message": lambda s: s.hset(key("leases"), "z", "x"),
}

OF_LIMITS: dict[str, Callable[[Server], object]] = {
    "a ready message in no line": _remove("lines", "a2"),
    "a leased message that no limit counts": _remove("lines", "a1"),
    "a place in line of no message": lambda s: s.zadd(key("lines"), {"wz\1" + "0" * 26: 0}),
    "a lease of no message in a group": lambda s: s.zadd(key("lines"), {"rz\1" + "0" * 12: 0}),
    "a line without turns": lambda s: s.zrem(key("turns"), "c"),
    "turns that are gone": lambda s: s.delete(key("turns")),
}


def _audit(engine: RedisEngine) -> Audit:
    (counts,) = engine.execute([Count("q", recount=True)], NOW)
    assert isinstance(counts, Counts)
    return Audit.of("q", counts)


def _fill(engine: RedisEngine) -> None:
    """Put messages that are then in each state; `a` has as many leases as it may have."""
    items = [Item(id, b"1", group=id[0]) for id in ("k1", "b1", "a1", "a2", "c1")]
    items += [Item("d1", b"1", died=NOW), Item("later", b"1", delay=HOUR, priority=5, group="l")]
    engine.execute([Configure("q", keep=HOUR), Put("q", items)], NOW)
    claimed = claim(engine, 3)
    assert [message.id for message in claimed.messages] == ["k1", "b1", "a1"]
    engine.execute([Ack("q", of(claimed, "k1"))], NOW)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("damage", OF_MESSAGES)
def test_messages_that_contradict_their_places_or_the_counters_are_found(
    engine: RedisEngine, server: Server, damage: str, limited: bool
) -> None:
    engine.execute([LIMITS] if limited else [], NOW)
    _fill(engine)
    assert _audit(engine)
    OF_MESSAGES[damage](server)
    assert not _audit(engine)


@pytest.mark.parametrize("damage", OF_LIMITS)
def test_lines_that_contradict_the_messages_are_found(
    engine: RedisEngine, server: Server, damage: str
) -> None:
    engine.execute([LIMITS], NOW)
    _fill(engine)
    assert _audit(engine)
    OF_LIMITS[damage](server)
    assert (_audit(engine).counts.strays or 0) > 0
