"""Two versions of bide beside each other: each calls its own functions, and both agree."""

from collections.abc import Callable

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine, connection, sender
from bide.engines.redis.calls import LIBRARY, Library, as_library
from bide.model.commands import Ack, Cancel, Claim, Count, Lease, Put
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

NOW = 1_700_000_000_000


def other_library() -> Library:
    """Return the library as another version has it: of another text, and so of other names."""
    *_, text = LIBRARY.text.split("\n", 2)
    return as_library(f"{text}-- another version\n")


@pytest.fixture
def open_other(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open an engine of the other version."""

    def open_other(*url: str) -> RedisEngine:
        with monkeypatch.context() as patched:
            for module in (connection, sender):
                patched.setattr(module, "LIBRARY", other_library())
            return open_engine(*url)

    return open_other


def put(engine: RedisEngine, *ids: str) -> None:
    (reply,) = engine.execute([Put("q", [Item(id, b"1") for id in ids])], NOW)
    assert isinstance(reply, Outcomes)
    assert all(reply.outcomes)


def claim(engine: RedisEngine, count: int) -> Claimed:
    (reply,) = engine.execute([Claim("q", count, 60_000, "w")], NOW + 1)
    assert isinstance(reply, Claimed)
    return reply


def test_the_library_has_room_for_five_more_shared_names(server: "client_library.Redis") -> None:
    """A function of Lua has at most 200 local variables, and the whole text is one."""
    *_, text = LIBRARY.text.split("\n", 2)
    more = "".join(f"local another{number}\n" for number in range(5))
    server.function_load(as_library(more + text).text)


def test_they_share_queues(open_engine: Open, open_other: Open, redis_server: RedisServer) -> None:
    mine, theirs = open_engine(), open_other()
    put(mine, "a", "b", "c")
    put(theirs, "d", "e", "f")
    first, second = claim(theirs, 2), claim(mine, 2)
    assert [m.id for m in (*first.messages, *second.messages)] == ["a", "b", "c", "d"]
    assert second.token > first.token
    replies = [
        *mine.execute([Ack("q", [Lease("a", first.token)]), Cancel("q", ["e"])], NOW + 2),
        *theirs.execute([Ack("q", [Lease("c", second.token)]), Cancel("q", ["f", "b"])], NOW + 2),
    ]
    outcomes = [o.done for r in replies if isinstance(r, Outcomes) for o in r.outcomes]
    assert outcomes == [True, True, True, True, False]
    for engine in (mine, theirs):
        (counts,) = engine.execute([Count("q", recount=True)], NOW + 2)
        assert isinstance(counts, Counts)
        assert (counts.sizes.leased, counts.sizes.total, counts.strays) == (2, 2, 0)
        assert (counts.flow.put, counts.flow.acked, counts.flow.cancelled) == (6, 2, 2)


def test_they_wake_each_other(open_engine: Open, open_other: Open) -> None:
    pairs = {"p": (open_engine(), open_other()), "q": (open_other(), open_engine())}
    for queue, (waiter, putter) in pairs.items():
        notifier = waiter.notifier()
        assert notifier is not None
        waiter.execute([Claim(queue, 1, 60_000, "w")], NOW)
        putter.execute([Put(queue, [Item("a", b"1", delay=500)])], NOW)
        assert notifier.listen() == [(queue, NOW + 500)]


def test_functions_that_are_flushed_come_back_for_both(
    open_engine: Open, open_other: Open, start: Callable[..., RedisServer]
) -> None:
    server = start()
    mine, theirs = open_engine(server.url), open_other(server.url)
    put(mine, "a")
    put(theirs, "b")
    server.client().function_flush()
    put(mine, "c")
    assert len(claim(mine, 5).messages) == 3
