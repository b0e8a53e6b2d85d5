"""Hooks for the tests of the engines: they reach the connections of an engine that is open.

Programs and their tests have no use for them, and they may change with any version. It needs the
client libraries of all stores.
"""

import sqlite3

from bide.engines.postgres.connection import PostgresCaller
from bide.engines.postgres.engine import PostgresEngine
from bide.engines.redis.engine import RedisEngine
from bide.engines.redis.sender import CallSender
from bide.engines.sqlite.engine import SqliteEngine


def sqlite_connection(engine: SqliteEngine) -> sqlite3.Connection:
    """Return the connection to the file."""
    assert engine._connection is not None
    return engine._connection


def postgres_caller(engine: PostgresEngine) -> PostgresCaller:
    """Return what calls the functions of the store, with the connection."""
    assert engine._caller is not None
    return engine._caller


def redis_sender(engine: RedisEngine) -> CallSender:
    """Return what sends calls to the nodes."""
    return engine._sender
