"""A store on PostgreSQL, and a user of the same database."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine, from_url
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
