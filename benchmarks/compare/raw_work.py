"""What one step costs without bide on each kind of store: a commit, a statement, a request."""

import http.client
import itertools
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.raw import BODY, insert_one, raw_store

__all__ = ["Kind", "RawWork", "raw_work"]

Kind = Literal["write", "read"]


class Raw(NamedTuple):
    """What does one step, whatever it is called with, and its name."""

    name: str
    work: Callable[[object], object]


RawWork = dict[Kind, Raw]
"""What a writing and a reading call are held against."""


def raw_work(store: str, url: str) -> RawWork:
    """Return the raw work of a kind of store, over a connection of its own."""
    makers: dict[str, Callable[[str], RawWork]] = {
        "sqlite": _sqlite,
        "redis": _redis,
        "postgres": _postgres,
        "http": _http,
    }
    return makers[store](url) if store in makers else {}


def _sqlite(url: str) -> RawWork:
    folder = tempfile.mkdtemp(dir=Path(url.removeprefix("sqlite:///")).parent)
    connection = raw_store(Path(folder))
    numbers = itertools.count()

    def insert(_: object) -> None:
        insert_one(connection, f"m{next(numbers):025}")

    def select(_: object) -> sqlite3.Row:
        query = "SELECT id, due, body FROM message WHERE queue = 1 AND id = ?"
        row: sqlite3.Row = connection.execute(query, (f"m{0:025}",)).fetchone()
        return row

    insert(None)
    return {"write": Raw("INSERT and commit", insert), "read": Raw("SELECT", select)}


def _redis(url: str) -> RawWork:
    import redis

    client = redis.Redis(unix_socket_path=url.removeprefix("unix://"))
    ping = Raw("PING", lambda _: client.ping())
    return {"write": ping, "read": ping}


def _postgres(url: str) -> RawWork:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    connection.execute("DROP TABLE IF EXISTS raw")
    connection.execute("CREATE TABLE raw (id text PRIMARY KEY, due bigint, body bytea)")
    connection.execute("CREATE INDEX ON raw (due)")
    numbers = itertools.count()
    body = BODY.encode()

    def insert(_: object) -> None:
        row = (f"m{next(numbers):025}", round(time.time() * 1000), body)
        connection.execute("INSERT INTO raw VALUES (%s, %s, %s)", row, prepare=True)

    def select(_: object) -> None:
        connection.execute("SELECT 1", prepare=True)

    return {"write": Raw("INSERT and commit", insert), "read": Raw("SELECT 1", select)}


def _http(url: str) -> RawWork:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))

    def request(_: object) -> None:
        connection.request("GET", "/healthz")
        connection.getresponse().read()

    get = Raw("GET /healthz", request)
    return {"write": get, "read": get}
