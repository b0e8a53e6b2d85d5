"""Interrupts at any place of a call on Redis: no false answer, and the books balance."""

import gc
from collections.abc import Callable

import pytest

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
