"""A store of any kind, and another program that tears what is in it."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis as client_library

from bide.engines.port import Engine
from bide.engines.postgres import PostgresEngine
from bide.engines.registry import opener

Server = client_library.Redis
Tear = Callable[[Server], object]


class TornStore:
    """An engine, and another program that changes what it has stored.

    Args:
        kind: what kind of store it is.
        url: the URL of an empty store of that kind.
    """

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.engine: Engine = opener(url)()

    def tear(self, damage: str | Tear) -> None:
        """Change rows by statements, or keys by a function."""
        if isinstance(self.engine, PostgresEngine):
            assert isinstance(damage, str)
            with self.connected() as user:
                user.execute(damage.encode())
        elif isinstance(damage, str):
            with closing(sqlite3.connect(urlsplit(self.url).path)) as user:
                user.executescript(damage)
                assert user.total_changes > 0
        else:
            with closing(Server.from_url(self.url)) as user:
                damage(user)

    def connected(self) -> psycopg.Connection[Any]:
        """Connect another client of PostgreSQL to the tables of the store."""
        assert isinstance(self.engine, PostgresEngine)
        user = psycopg.connect(self.url.partition("&")[0])
        user.execute(f"SET search_path = {self.engine.schema}".encode())
        return user


def cases(damages: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return each store with each damage to it."""
    return [
        pytest.param(kind, damage, id=f"{kind}-{name}")
        for kind, of_kind in damages.items()
        for name, damage in of_kind.items()
    ]
