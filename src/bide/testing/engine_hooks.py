"""Hooks for the tests of the engines: they reach the connections of an engine that is open.

Programs and their tests have no use for them, and they may change with any version. It needs the
client libraries of all stores.
"""

import socket
import sqlite3
from typing import Any

import psycopg

from bide.engines.http.engine import HttpEngine
from bide.engines.postgres.connection import PostgresCaller
from bide.engines.postgres.engine import PostgresEngine
from bide.engines.postgres.notifier import PostgresNotifier
from bide.engines.redis.engine import RedisEngine
from bide.engines.redis.queues import ShardMap
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


def postgres_listening(notifier: PostgresNotifier) -> psycopg.Connection[Any]:
    """Return the connection that listens."""
    assert notifier._connection is not None
    return notifier._connection


def postgres_positions(engine: PostgresEngine) -> dict[str, int]:
    """Return how far the log had come with the last confirmed change of each queue."""
    return dict(engine._witness._confirmed)


def http_socket(engine: HttpEngine) -> socket.socket:
    """Return the socket of the connection to the server."""
    assert engine._connection is not None
    assert engine._connection._channel is not None
    return engine._connection._channel._socket


def redis_shards(engine: RedisEngine) -> ShardMap:
    """Return what knows how many shards each queue has."""
    return engine._shards


def redis_sender(engine: RedisEngine) -> CallSender:
    """Return what sends calls to the nodes."""
    return engine._sender
