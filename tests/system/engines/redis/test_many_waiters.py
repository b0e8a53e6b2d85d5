"""Many who wait: a put wakes few of them, and the death of one delays nobody."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess

import pytest

from bide.engines.registry import opener
from bide.lane import waiting_claims
from bide.lane.lane import Lane
from bide.model.commands import Claim, Put
from bide.model.errors import Closed
from bide.model.message import Item, Message
from bide.model.replies import Claimed
from tests.effort import one_in
from tests.servers import PATIENCE, RedisServer
from tests.system.engines.redis.conftest import Open
from tests.waiting import until

pytestmark = pytest.mark.process

WAITS = 200


def wait(url: str) -> None:
    """Wait for a message that never comes, in a process of its own."""
    Lane(opener(url)).call(Claim("q", 1, 60_000, "w"), wait=600)


@pytest.fixture
def bear() -> Iterator[Callable[[str], BaseProcess]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.system.engines.redis.test_many_waiters"])
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


@pytest.fixture(autouse=True)
def never_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of this process claim when the server told them to, and not for any other reason."""
    monkeypatch.setattr(waiting_claims, "LOOK_AGAIN", 3600)
    monkeypatch.setattr(waiting_claims, "LOOK_AGAIN_CALM", 3600)


@pytest.mark.parametrize("ending", one_in(2, [signal.SIGKILL, signal.SIGSTOP]))
def test_another_claims_50_ms_later_when_the_leader_has_died(
    redis_server: RedisServer,
    url: str,
    open_engine: Open,
    bear: Callable[[str], BaseProcess],
    ending: signal.Signals,
) -> None:
    """It dies, or hangs, in the middle of its wait for the moment that it alone was told."""
    leader = bear(url)
    lane = Lane(opener(url))
    messages: list[Message] = []

    def take() -> None:
        reply = lane.call(Claim("q", 1, 60_000, "w"), wait=PATIENCE)
        assert isinstance(reply, Claimed)
        messages.extend(reply.messages)

    with redis_server.client(db=int(url.rpartition("=")[2])) as client:
        until(lambda: client.zcard("bide:{q#0}:waiters") == 1)
        thread = _started(take)
        until(lambda: client.zcard("bide:{q#0}:waiters") == 2)
        open_engine().execute([Put("q", [Item("a", b"1", delay=2_000)])])
        times = [
            claims for _, claims in client.zrange("bide:{q#0}:waiters", 0, -1, withscores=True)
        ]
        _signal(leader, ending)
    thread.join(PATIENCE)
    lane.close()
    (message,) = messages
    assert times == [message.due, message.due + 50]


def _signal(process: BaseProcess, ending: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, ending)


def _started(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_put_wakes_two_of_two_hundred_who_wait(
    redis_server: RedisServer, url: str, open_engine: Open
) -> None:
    messages: list[Message] = []

    def wait_on(lane: Lane) -> None:
        try:
            reply = lane.call(Claim("q", 1, 60_000, "w"), wait=600)
        except Closed:  # by the end of the test
            return
        assert isinstance(reply, Claimed)
        messages.extend(reply.messages)

    lanes = [Lane(opener(url)) for _ in range(WAITS)]
    threads = [_started(partial(wait_on, lane)) for lane in lanes]
    with redis_server.client(db=int(url.rpartition("=")[2])) as client:
        until(lambda: client.zcard("bide:{q#0}:waiters") == WAITS)
        before = client.info("commandstats")["cmdstat_fcall"]["calls"]
        open_engine().execute([Put("q", [Item("a", b"1")])])
        until(lambda: len(messages) == 1)
        calls = client.info("commandstats")["cmdstat_fcall"]["calls"] - before
    for lane in lanes:
        lane.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [message.id for message in messages] == ["a"]
    assert calls < 10  # the put, two claims, and what they note of their ends
