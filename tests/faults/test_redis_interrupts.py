"""Interrupts at any place of a call on Redis: no false answer, and the books balance."""

import asyncio
import gc
from collections.abc import Callable
from random import Random

import pytest

import bide
from tests.cluster import RedisCluster
from tests.effort import effort
from tests.faults.ledger import Ledger
from tests.faults.strikes import Late, alarms, own_threads

pytestmark = [
    pytest.mark.process,
    # What a handler raises inside a finalizer, such as those of redis-py, Python drops.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # It closes a socket whose making was interrupted before anything had a name for it.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

HITS = effort(300, 2_000)


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest, redis_url: Callable[[], str]) -> str:
    if request.param == "server":
        return redis_url()
    cluster: RedisCluster = request.getfixturevalue("redis_cluster")
    cluster.wipe()
    return f"{cluster.url}?shards=4"


@pytest.mark.parametrize("error", [Late, TimeoutError, KeyboardInterrupt])
def test_a_signal_handler_that_raises(url: str, error: type[BaseException]) -> None:
    with alarms(error) as strikes:
        ledger = Ledger(url, strikes)
        ledger.turn()
        threads = {thread.name for thread in own_threads()}
        while strikes.hits < HITS:
            ledger.turn()
    assert threads <= {thread.name for thread in own_threads()}
    assert ledger.problems() == []
    gc.collect()


def test_cancelled_tasks(url: str) -> None:
    assert asyncio.run(cancel_tasks(url)) == []


async def cancel_tasks(url: str) -> list[str]:
    """Cancel tasks while they put and cancel; return what is false."""
    chance = Random(1)
    false: list[str] = []
    present: dict[str, bool] = {}
    hits = number = 0
    async with bide.AsyncQueue("tasks", url) as queue:
        while hits < effort(100, 2_000):
            number += 1
            id = f"m{number}"
            task = asyncio.ensure_future(queue.put(number, id=id, delay="1h"))
            await asyncio.sleep(chance.uniform(0, 0.001))
            task.cancel()
            try:
                present[id] = bool(await task)
            except asyncio.CancelledError:
                hits += 1
            if await queue.cancel(f"never {id}"):
                false.append(f"never {id} was cancelled")
            if present.get(id) and chance.random() < 0.5:
                if not await queue.cancel(id):
                    false.append(f"{id} was not cancelled")
                present[id] = False
        there = {message.id async for message in queue.scan()}
        false += [id for id, is_there in present.items() if (id in there) is not is_there]
        if not (audit := await queue.audit()):
            false.append(str(audit))
    return false
