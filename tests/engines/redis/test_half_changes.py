"""Halves of changes, left by a server that died: a script cut behind each of its writes.

The writes are read from the append-only file, and the first of them are done again on what was
there before. Whatever then stands where, each message comes once more, and who asks is answered.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import (
    Ack,
    Cancel,
    Configure,
    Count,
    Edit,
    Extend,
    Find,
    Put,
    RetryCommand,
    Scan,
    Where,
)
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes
from tests.effort import effort
from tests.engines.redis.claims import LEASE, MANY, NOW, claim, key, of, put
from tests.engines.redis.conftest import Open
from tests.servers import RedisServer

Change = Callable[[], object]

DAY = 86_400_000


@pytest.fixture
def disk(start: Callable[..., RedisServer]) -> RedisServer:
    return start(appendonly="yes", appendfsync="no")


@pytest.fixture
def engine(open_engine: Open, disk: RedisServer) -> RedisEngine:
    return open_engine(disk.url)


def _claiming(engine: RedisEngine) -> Change:
    put(engine, 2 * MANY)
    claim(engine)
    return lambda: claim(engine, now=NOW + 1)


def _claiming_few(engine: RedisEngine) -> Change:
    put(engine, MANY)
    return lambda: claim(engine, 50)


def _acking(engine: RedisEngine) -> Change:
    put(engine, 2 * MANY)
    claimed = claim(engine)
    claim(engine, now=NOW + 1)
    return lambda: engine.execute([Ack("q", of(claimed))], NOW + 2)


def _acking_remembered(engine: RedisEngine) -> Change:
    engine.execute([Configure("q", history=LEASE, result_ttl=LEASE)], NOW)
    put(engine, MANY)
    held = of(claim(engine))[:5]
    return lambda: engine.execute([Ack("q", held, [b"1"] * len(held))], NOW + 1)


def _acking_one(engine: RedisEngine) -> Change:
    put(engine, MANY)
    claimed = claim(engine)
    return lambda: engine.execute([Ack("q", of(claimed)[:1])], NOW + 1)


def _retrying(engine: RedisEngine) -> Change:
    put(engine, MANY)
    claimed = claim(engine)
    return lambda: engine.execute([RetryCommand("q", of(claimed)[:3], 5, "later")], NOW + 1)


def _extending(engine: RedisEngine) -> Change:
    put(engine, MANY)
    claimed = claim(engine)
    return lambda: engine.execute([Extend("q", of(claimed)[:3], 2 * LEASE)], NOW + 1)


def _lapsing(engine: RedisEngine) -> Change:
    put(engine, MANY)
    claim(engine)
    return lambda: claim(engine, 10, NOW + LEASE)


def _succeeded(engine: RedisEngine) -> Claimed:
    put(engine, MANY, group="g")
    claimed = claim(engine)
    items = [Item(m.id, b"2", delay=5, group="h", latest=9) for m in claimed.messages[:3]]
    engine.execute([Put("q", items, "replace")], NOW + 1)
    return claimed


def _following(engine: RedisEngine) -> Change:
    claimed = _succeeded(engine)
    return lambda: engine.execute([Ack("q", of(claimed)[:3])], NOW + 2)


def _following_lapsed(engine: RedisEngine) -> Change:
    _succeeded(engine)
    return lambda: claim(engine, 10, NOW + LEASE)


LIMITED = Configure("q", limit=9, group_limit=5)


def _expiring(engine: RedisEngine) -> Change:
    items = [Item(f"n{i}", b"1", expires=1 if i % 2 else None) for i in range(6)]
    engine.execute([Put("q", items)], NOW)
    return lambda: claim(engine, 4, NOW + 2)


def _limited_expiring(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    return _expiring(engine)


def _limited_claiming(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    put(engine, MANY, group="g")
    put(engine, 3, "n")
    return lambda: claim(engine, 7)


def _limited_looking_ahead(engine: RedisEngine) -> Change:
    engine.execute([Configure("q", limit=1_000)], NOW)
    put(engine, 1_100, group="g")
    put(engine, 3, "n", "h")
    put(engine, 3, "o", "i")
    return lambda: claim(engine, 7)


def _limited_acking(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    put(engine, 30, group="g")
    put(engine, 30, "n", "h")
    claimed = claim(engine, 8)
    return lambda: engine.execute([Ack("q", of(claimed))], NOW + 1)


def _limited_lapsing(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    put(engine, 30, group="g")
    claim(engine)
    return lambda: claim(engine, 1, NOW + LEASE)


def _limited_cancelling(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    put(engine, 30, group="g")
    claim(engine, 1)
    return lambda: engine.execute(
        [Edit("q", ["m0004"], group="h"), Cancel("q", ["m0005", "m0006"])], NOW
    )


def _limiting(engine: RedisEngine) -> Change:
    put(engine, 30, group="g")
    claim(engine, 3)
    return lambda: engine.execute([LIMITED], NOW)


def _replacing(engine: RedisEngine) -> Change:
    put(engine, 3, group="g")
    items = [Item(f"m{n:04}", b"2", delay=5, priority=9, group="h") for n in range(3)]
    return lambda: engine.execute([Put("q", items, "replace")], NOW + 1)


def _sweeping(engine: RedisEngine) -> Change:
    put(engine, 6, group="g")
    put(engine, 6, "n")
    claim(engine, 2)
    engine.execute([Put("q", [Item("o1", b"1", delay=9)])], NOW)
    rules = [Cancel("q", where=Where(group="g")), Cancel("q", where=Where(before=NOW + 5))]
    return lambda: engine.execute(rules, NOW + 1)


def _limited_sweeping(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    return _sweeping(engine)


def _limited_following(engine: RedisEngine) -> Change:
    engine.execute([LIMITED], NOW)
    put(engine, 9, group="g")
    claimed = claim(engine)
    items = [Item(m.id, b"2", delay=5, group="h", latest=9) for m in claimed.messages[:3]]
    engine.execute([Put("q", items, "replace")], NOW + 1)
    return lambda: engine.execute([Ack("q", of(claimed)[:3])], NOW + 2)


def writes(server: RedisServer) -> list[list[bytes]]:
    """Return all commands of the append-only file that change something."""
    (file,) = Path(server.folder).glob("appendonlydir/*.incr.aof")
    data, commands = file.read_bytes(), []
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
        _limited_looking_ahead,
        _limited_acking,
        _limited_lapsing,
        _limited_cancelling,
        _limiting,
        _replacing,
        _sweeping,
        _limited_sweeping,
        _limited_following,
    ],
    ids=lambda begin: begin.__name__[1:],
)
def test_a_script_may_be_cut_behind_any_of_its_writes(
    disk: RedisServer, open_engine: Open, engine: RedisEngine, begin: Callable[..., Change]
) -> None:
    server = disk.client()
    change = begin(engine)
    names: list[bytes] = server.keys("*")  # type: ignore[assignment]
    before = {name: server.dump(name) for name in names}
    known = len(writes(disk))
    change()
    done = writes(disk)[known:]
    assert len(done) > 3
    step = effort(2, 1)
    for cut in [*range(0, min(len(done), 24), step), *range(24, len(done), 1 + len(done) // 6)]:
        server.flushall()
        for name, dumped in before.items():
            server.restore(name, 0, dumped)  # type: ignore[arg-type]
        for words in done[:cut]:
            server.execute_command(*words)  # type: ignore[no-untyped-call]
        _all_comes_once(open_engine(disk.url), server)


def _all_comes_once(engine: RedisEngine, server: "client_library.Redis") -> None:
    """See that everything which has a record comes or has expired, and nothing stays behind."""
    there = {name.decode() for name in server.hkeys(key("records"))}  # type: ignore[union-attr]
    engine.execute([Count("q", recount=True), Scan("q", "leased"), Find("q", ["m0001"])], NOW + 5)
    now = NOW + 10 * LEASE
    found: Counter[str] = Counter()
    while (claimed := claim(engine, 400, now)).messages or claimed.behind:
        found.update(message.id for message in claimed.messages)
        (acked,) = engine.execute([Ack("q", of(claimed))], now)
        assert isinstance(acked, Outcomes)
        assert all(acked.outcomes)
        now += 1
    kept = {member[12:].decode() for member in server.zrange(key("kept"), 0, -1)}  # type: ignore[union-attr]
    assert set(found) == there - kept
    assert set(found.values()) <= {1}
    (counts,) = engine.execute([Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert counts.strays == 0
    engine.execute([Configure("q", limit=0, group_limit=0)], now + DAY)  # nothing is kept longer
    parts = ("records", "leases", "leased", "delayed", "ready", "lines", "turns", "shares")
    assert server.exists(*map(key, parts)) == 0
    ids = put(engine, MANY)
    assert [message.id for message in claim(engine, now=now).messages] == ids
