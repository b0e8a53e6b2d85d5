"""The stores whose calls are interrupted."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import RedisCluster
from tests.server.process import ServerProcess

STORES = ("memory", "sqlite", "postgres", "redis", "cluster", "http")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Provide the URL of an empty store, of each kind."""
    match request.param:
        case "memory":
            yield f"memory://{tmp_path.name}"
        case "sqlite":
            yield f"sqlite:///{tmp_path}/bide.db"
        case "http":
            with ServerProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/bide.db") as server:
                yield server.url
        case "cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            cluster.wipe()
            yield f"{cluster.url}?shards=4"
        case kind:
            make_url: Callable[[], str] = request.getfixturevalue(f"{kind}_url")
            yield make_url()
