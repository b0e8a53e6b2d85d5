from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine, from_url
from tests.cluster import RedisCluster
from tests.servers import RedisServer

Open = Callable[..., RedisEngine]


@pytest.fixture
def url(redis_url: Callable[[], str]) -> str:
    return redis_url()


@pytest.fixture
def open_engine(url: str) -> Iterator[Open]:
    """Opens engines on one store; all are closed at the end."""
    opened: list[RedisEngine] = []

    def open_engine(at: str = url) -> RedisEngine:
        opened.append(from_url(urlsplit(at))())
        return opened[-1]

    yield open_engine
    for engine in opened:
        engine.close()


@pytest.fixture
def engine(open_engine: Open) -> RedisEngine:
    return open_engine()


@pytest.fixture
def server(url: str) -> Iterator["client_library.Redis"]:
    """A plain client at the store of a test."""
    client = client_library.Redis.from_url(url)
    yield client
    client.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of the test's own; all are stopped at the end."""
    servers: list[RedisServer] = []

    def start(**options: Any) -> RedisServer:
        folder = tmp_path / f"server{len(servers)}"
        folder.mkdir()
        servers.append(RedisServer(folder, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., RedisCluster]]:
    """Starts clusters of the test's own; all are stopped at the end."""
    started: list[RedisCluster] = []

    def start(**options: Any) -> RedisCluster:
        started.append(RedisCluster(tmp_path, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
