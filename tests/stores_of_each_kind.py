"""An empty store of each kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import RedisCluster

STORES = ("memory", "sqlite", "postgres", "redis", "cluster", "http")


@contextmanager
def url_of(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Provide the URL of an empty store of a kind."""
    folder: Path = request.getfixturevalue("tmp_path")
    match kind:
        case "memory":
            yield f"memory://{folder.name}"
        case "sqlite":
            yield f"sqlite:///{folder}/bide.db"
        case "cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            cluster.wipe()
            yield f"{cluster.url}?shards=4"
        case _:
            yield request.getfixturevalue(f"{kind}_url")()
