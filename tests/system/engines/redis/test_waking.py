"""Waking: a lane that waits hears of what others put, one lane a signal, without polling."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import EVERYBODY, shard_of
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import (
    Ack,
    Claim,
    Configure,
    Lease,
    Put,
    Release,
)
from bide.model.errors import Closed
from bide.model.message import Item
from bide.model.replies import Claimed
from bide.model.times import interval
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open
from tests.waiting import until

PATIENCE = 60.0


class Waiter:
    """A lane of its own, as if in a process of its own, and a thread that waits there."""

    def __init__(self, url: str) -> None:
        self.lane = Lane(opener(url))
        self.got: list[tuple[str, float]] = []
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            reply = self.lane.call(Claim("q", 1, 60_000, "w"), wait=PATIENCE)
        except Closed:  # by the end of the test
            return
        assert isinstance(reply, Claimed)
        arrived = time.time()
        self.got = [(m.id, arrived - m.due / 1000) for m in reply.messages]

    def join(self) -> None:
        self._thread.join(PATIENCE)
        self.lane.close()


@pytest.fixture(autouse=True)
def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that waits looks again once a second by itself: here it must be woken."""
    monkeypatch.setattr("bide.lane.waiting_claims.LOOK_AGAIN", 10 * PATIENCE)


@pytest.fixture
def waiters(url: str, redis_server: RedisServer) -> Iterator[Callable[..., list[Waiter]]]:
    made: list[Waiter] = []

    def wait(count: int, at: str = url, shards: int = 1) -> list[Waiter]:
        made.extend(Waiter(at) for _ in range(count))
        client = redis_server.client(db=int(url.rpartition("=")[2]))
        keys = [f"bide:{{q#{shard}}}:waiters" for shard in range(shards)]
        until(lambda: all(client.zcard(key) == len(made) for key in keys))
        client.close()
        return made

    yield wait
    for waiter in made:
        waiter.lane.close()


def put(*ids: str, delay: int = 0) -> Put:
    return Put("q", [Item(id, b"1", delay=delay) for id in ids])


def scripts_run(server: RedisServer) -> int:
    client = server.client()
    calls: int = client.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"]
    client.close()
    return calls


@pytest.mark.process
def test_a_put_elsewhere_wakes_who_waits(
    waiters: Callable[[int], list[Waiter]], open_engine: Open
) -> None:
    (waiter,) = waiters(1)
    open_engine().execute([put("a", delay=100)])
    waiter.join()
    ((id, late),) = waiter.got
    assert id == "a"
    assert late >= 0


@pytest.mark.process
def test_the_end_of_a_lease_wakes_one_that_waits_for_a_limit(
    engine: RedisEngine, url: str, server: "client_library.Redis", redis_server: RedisServer
) -> None:
    (_, _, claimed) = engine.execute(
        [Configure("q", limit=1), put("a", "b", "c"), Claim("q", 9, 60_000, "w")]
    )
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["a"]
    crowd = [Waiter(url), Waiter(url)]  # one leads: it sleeps until the lease is over
    until(lambda: server.zcard("bide:{q#0}:waiters") == 2)
    before = scripts_run(redis_server)
    engine.execute([Ack("q", [Lease("a", claimed.token)])])
    until(lambda: any(waiter.got for waiter in crowd))
    engine.execute([Release("q", ["b"], "again")])
    for waiter in crowd:
        waiter.join()
    assert sorted(id for waiter in crowd for id, _ in waiter.got) == ["b", "b"]
    assert scripts_run(redis_server) - before < 15  # nobody polls


@pytest.mark.process
def test_claims_wait_for_as_long_as_a_rate_says(
    engine: RedisEngine, url: str, redis_server: RedisServer
) -> None:
    (_, _, claimed) = engine.execute(
        [Configure("q", rate=interval(5)), put("a", "b", "c"), Claim("q", 9, 60_000, "w")]
    )
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["a"]
    before = scripts_run(redis_server)
    crowd = [Waiter(url), Waiter(url)]
    for waiter in crowd:
        waiter.join()
    (b, late), (c, later) = sorted(got for waiter in crowd for got in waiter.got)
    assert (b, c) == ("b", "c")
    assert late >= 0.19
    assert later >= 0.39
    assert scripts_run(redis_server) - before < 15


@pytest.mark.process
def test_a_put_in_any_shard_wakes_who_waits(
    waiters: Callable[..., list[Waiter]], open_engine: Open, url: str
) -> None:
    several = f"{url}&shards=4"
    engine = open_engine(several)
    engine.execute([Configure("q")])
    crowd = waiters(4, several, shards=4)
    ids = ["m0", "m1", "m4", "m5"]
    assert {shard_of(id, 4) for id in ids} == {0, 1, 2, 3}
    for id in ids:
        engine.execute([put(id, delay=50)])
    for waiter in crowd:
        waiter.join()
    assert sorted(id for waiter in crowd for id, _ in waiter.got) == ids


@pytest.mark.process
def test_each_of_many_puts_wakes_one_of_many_waiters(
    waiters: Callable[[int], list[Waiter]], open_engine: Open
) -> None:
    crowd = waiters(8)
    engine = open_engine()
    for number in range(8):
        engine.execute([put(f"m{number}")])
    for waiter in crowd:
        waiter.join()
    assert sorted(id for waiter in crowd for id, _ in waiter.got) == [f"m{n}" for n in range(8)]


@pytest.mark.process
def test_a_burst_of_puts_does_not_wake_all_who_wait(
    waiters: Callable[[int], list[Waiter]], open_engine: Open, redis_server: RedisServer
) -> None:
    waiters(20)
    engine = open_engine()
    before = scripts_run(redis_server)
    for number in range(200):
        engine.execute([put(f"m{number}", delay=60_000 - number)])
    assert scripts_run(redis_server) - before <= 400  # a put takes two at most


@pytest.mark.process
def test_resuming_wakes(waiters: Callable[[int], list[Waiter]], open_engine: Open) -> None:
    engine = open_engine()
    engine.execute([put("a"), Configure("q", paused=True)])
    (waiter,) = waiters(1)
    engine.execute([Configure("q", paused=False)])
    waiter.join()
    assert [id for id, _ in waiter.got] == ["a"]


@pytest.mark.parametrize("text", [b"x", b"q at soon", b"\xff\xfe", b""])
def test_what_others_publish_ends_no_waking(
    waiters: Callable[..., list[Waiter]],
    url: str,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    text: bytes,
) -> None:
    (waiter,) = waiters(1)
    client = redis_server.client(db=int(url.rpartition("=")[2]))
    ((_, lanes),) = client.pubsub_numsub(EVERYBODY)  # perhaps also one that another test left
    for _ in range(3):
        for channel in client.pubsub_channels():
            client.publish(channel, text)
    with closing(Lane(opener(url))) as other:
        other.call(Put("q", [Item("a", b"1")]))
    waiter.join()
    assert [id for id, _ in waiter.got] == ["a"]
    skipped = [record for record in caplog.records if "not from bide" in record.getMessage()]
    assert 1 <= len(skipped) <= lanes  # each says it once
    client.close()
