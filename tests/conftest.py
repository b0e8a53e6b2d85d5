"""What holds for all tests."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.cluster import RedisCluster
from tests.effort import FULL
from tests.servers import RedisServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores Ctrl-C for all that they start, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `full` as well")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("full"):
        os.environ[FULL] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `full` to `make test-full`."""
    if config.getoption("full"):
        return
    left = [item for item in items if item.get_closest_marker("full") is not None]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Provide the one server that the tests of a process share."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Provide the one cluster that tests share which leave it as it is: three masters."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


_databases = itertools.count()


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> Iterator[Callable[[], str]]:
    """Provide URLs of databases that are empty when they are handed out."""
    clients = [redis_server.client(db=number) for number in range(64)]

    def fresh() -> str:
        number = next(_databases) % 64
        clients[number].flushdb()
        return f"{redis_server.url}?db={number}"

    yield fresh
    for client in clients:
        client.close()
