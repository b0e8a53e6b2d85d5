"""Many who wait: they cost the server next to nothing, and the death of one delays nobody."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess

import pytest

from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Claim, Put
from bide.model.errors import Closed
from bide.model.message import Item
from bide.model.replies import Claimed
from tests.engines.redis.conftest import Open, until
from tests.servers import PATIENCE, RedisServer

pytestmark = pytest.mark.process

WAITS = 200
ROUNDS = 5


def wait(url: str) -> None:
    """Wait for a message that never comes, in a process of its own."""
    Lane(opener(url)).call(Claim("q", 1, 60_000, "w"), wait=600)


@pytest.fixture
def bear() -> Iterator[Callable[[str], BaseProcess]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.engines.redis.test_many_waiters"])
    born: list[BaseProcess] = []

    def bear(url: str) -> BaseProcess:
        process = context.Process(target=wait, args=(url,), daemon=True)
        process.start()
        born.append(process)
        return process

    yield bear
    for process in born:
        process.kill()
        process.join()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_the_death_of_the_leader_delays_nobody_by_more_than_100_ms(
    redis_server: RedisServer,
    url: str,
    open_engine: Open,
    bear: Callable[[str], BaseProcess],
    ending: signal.Signals,
) -> None:
    """It dies, or hangs, in the middle of its wait for the moment that it alone was told."""
    lateness: list[float] = []
    putter = open_engine()
    with redis_server.client(db=int(url.rpartition("=")[2])) as client:
        while not lateness or min(lateness) > 0.1:  # a machine with other things to do gets more
            assert len(lateness) < ROUNDS, lateness
            client.flushdb()
            leader = bear(url)
            until(lambda: client.zcard("bide:{q#0}:waiters") == 1)
            lane = Lane(opener(url))
            got: list[float] = []

            def take(lane: Lane = lane, got: list[float] = got) -> None:
                reply = lane.call(Claim("q", 1, 60_000, "w"), wait=PATIENCE)
                assert isinstance(reply, Claimed)
                got.append(time.time() - reply.messages[0].due / 1000)

            thread = _started(take)
            until(lambda: client.zcard("bide:{q#0}:waiters") == 2)
            putter.execute([Put("q", [Item("a", b"1", delay=300)])])
            until(lambda: client.zcount("bide:{q#0}:waiters", 0, 2**49) == 2)
            _signal(leader, ending)
            thread.join(PATIENCE)
            lane.close()
            leader.kill()
            lateness += got


def _signal(process: BaseProcess, ending: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, ending)


def _started(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_two_hundred_who_wait_cost_the_server_next_to_nothing(
    redis_server: RedisServer, url: str, open_engine: Open
) -> None:
    open_engine().execute([Put("q", [Item(f"m{n}", b"1", delay=60_000 + n) for n in range(1000)])])
    lanes = [Lane(opener(url)) for _ in range(WAITS)]
    threads = [_started(partial(_wait_on, lane)) for lane in lanes]
    with redis_server.client(db=int(url.rpartition("=")[2])) as client:
        until(lambda: client.zcard("bide:{q#0}:waiters") == WAITS)
        before, begin = client.info("all"), time.monotonic()
        time.sleep(2)
        seconds, after = time.monotonic() - begin, client.info("all")
    for lane in lanes:
        lane.close()
    for thread in threads:
        thread.join(PATIENCE)
    calls = after["cmdstat_fcall"]["calls"] - before["cmdstat_fcall"]["calls"]
    busy = sum(after[kind] - before[kind] for kind in ("used_cpu_user", "used_cpu_sys"))
    assert calls <= WAITS * (seconds + 1)  # each looks again once a second, by itself
    assert busy / seconds < 0.25


def _wait_on(lane: Lane) -> None:
    try:
        lane.call(Claim("q", 1, 60_000, "w"), wait=600)
    except Closed:  # by the end of the test
        pass
