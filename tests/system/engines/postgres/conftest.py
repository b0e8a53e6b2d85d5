"""A store on PostgreSQL, and a user of the same database."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine, from_url, schema
from tests.postgres_server import PostgresServer


@pytest.fixture
def engine(postgres_url: Callable[[], str]) -> Iterator[PostgresEngine]:
    with closing(from_url(urlsplit(postgres_url()))()) as engine:
        yield engine


@pytest.fixture
def user(postgres: PostgresServer, engine: PostgresEngine) -> Iterator[psycopg.Connection[Any]]:
    """Provide the user's connection, whose `bide` is the store of the engine."""
    with psycopg.connect(postgres.url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Provide what makes this bide one of the next version, with a migration; it returns which."""

    def become_newer(migration: str = "") -> int:
        step = tmp_path / "2.sql"
        step.write_text(migration)
        version = schema.VERSION + 1
        monkeypatch.setitem(schema.MIGRATIONS, version, step)
        monkeypatch.setattr(schema, "VERSION", version)
        return version

    return become_newer
