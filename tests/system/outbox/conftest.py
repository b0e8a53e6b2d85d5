from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import bide
from bide.outbox.forwarder import table_of
from tests.postgres_server import PostgresServer
from tests.system.outbox.shop import connected


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """Provide a PostgreSQL database in which there was no outbox."""
    drop = "DROP TABLE IF EXISTS bide_outbox, bide_outbox_dead"
    with psycopg.connect(postgres.url, autocommit=True) as client:
        client.execute(drop)
        yield postgres.url
        client.execute(drop)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Provide the URL of the SQLite file of an application."""
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def orders(redis_url: Callable[[], str]) -> Iterator[bide.Queue]:
    """Provide a queue on a Redis server."""
    with bide.Queue("orders", redis_url()) as orders:
        yield orders
        assert orders.audit()


@pytest.fixture(params=["database", "file"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    table_of(url).close()
    return url


@pytest.fixture
def shop(url: str) -> Iterator[Any]:
    with connected(url) as connection:
        yield connection
