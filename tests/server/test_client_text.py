"""Clients learn what is wrong with the store, not where it is on the server's machine."""

import sqlite3
from pathlib import Path

import pytest

from bide.model.errors import InvalidArgument, StoreUnavailable
from bide.server.problem import ClientText
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.test_events import listening

PUT = {"command": "put", "queue": "orders", "items": [{"id": "m", "data": "MQ=="}]}


def answers(client: Client) -> list[str]:
    """Return what each kind of answer tells of a store that cannot be used."""
    replies = [
        client.put(f"{Q}/messages/m", {"body": 1}),
        client.post("/v1/batch", {"commands": [PUT]}),
        client.get("/readyz"),
        client.get("/metrics"),
    ]
    with listening(client, "counts=0.02") as stream:
        return [str(stream.until("problem")), *(reply.data.decode() for reply in replies)]


def test_a_locked_store_is_told_without_its_path(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(store=f"sqlite:///{tmp_path}/bide.db?timeout=10ms", push=False)
    client.put(f"{Q}/messages/m", {"body": 1})
    other = sqlite3.connect(tmp_path / "bide.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for reply in (
        client.put(f"{Q}/messages/n", {"body": 1}),
        client.post("/v1/batch", {"commands": [PUT]}),
    ):
        assert "kept the store locked for" in reply.data.decode()
        assert str(tmp_path) not in reply.data.decode()
    other.close()
    assert str(tmp_path) in caplog.text


def test_a_broken_store_is_told_without_its_path(serve: Serve, tmp_path: Path) -> None:
    client = serve(push=False, auth="off")  # it looks for no tokens
    client.put(f"{Q}/messages/m", {"body": 1})
    for part in ("-wal", "-shm"):
        (tmp_path / f"bide.db{part}").unlink()
    (tmp_path / "garbage").write_bytes(b"no database" * 1_000)
    (tmp_path / "garbage").rename(tmp_path / "bide.db")
    for told in answers(client):
        assert str(tmp_path) not in told
        assert "/dev/shm" not in told
        assert "/tmp" not in told
    assert "the store is not a SQLite database" in answers(client)[1]


@pytest.mark.parametrize(
    ("store", "text", "told"),
    [
        (
            "sqlite:////var/lib/bide/bide.db",
            "no file can be made in /var/lib/bide: denied",
            "no file can be made in the folder of the store: denied",
        ),
        (
            "sqlite:////srv/my files/bide.db",
            "/srv/my files/bide.db is damaged",
            "the store is damaged",
        ),
        ("redis://:secret@10.0.0.1/0", "redis://:***@10.0.0.1/0: refused", "the store: refused"),
        (
            "unix:///run/redis/redis.sock",
            "unix:///run/redis/redis.sock: no such file",
            "the store: no such file",
        ),
        (
            "redis://:secret@cache.internal:6379/0",
            "redis://:***@cache.internal:6379/0: no connection to cache.internal:6379 (Error 111 "
            "connecting to 10.1.2.3:6379. Connection refused)",
            "the store: no connection to the store (Error 111 connecting to .... "
            "Connection refused)",
        ),
        (
            "postgresql://bide@db.internal/app",
            'connection to server at "db.internal" (10.1.2.3), port 5432 failed: refused',
            "connection to server at the store (...), port 5432 failed: refused",
        ),
        (
            "redis://cache/0",
            "no connection to cache:6379; a cache mycache:6379",
            "no connection to the store; a cache mycache:6379",
        ),
        (
            "redis+sentinel://one:26379,two/shop",
            "one:26379 and two:26379 do not answer",
            "the store and the store do not answer",
        ),
        (
            "postgresql://db.internal/app",
            'connection to server at "db.internal" (2001:db8::1), port 5432 failed: refused',
            "connection to server at the store (...), port 5432 failed: refused",
        ),
        (
            "postgresql://db/app",
            "db/app is away (no host 'db'): the db of mydb/app",
            "the store is away (no host the store): the db of mydb/app",
        ),
        (
            "postgresql://[fd00::1]:5433/app",
            "fd00::1:5433/app at [fd00::1]:5433 (fd00::2): 1:30:00",
            "the store at the store (...): 1:30:00",
        ),
        ("memory://", "fe80::1%eth0 2001:db8:0:0:0:0:0:1, 1:2:3", "... ..., 1:2:3"),
        ("memory://", "cannot read /etc/bide/key.pem (denied)", "cannot read ... (denied)"),
    ],
)
def test_places_are_left_out(store: str, text: str, told: str) -> None:
    assert ClientText(store).of(StoreUnavailable(text)) == told
    assert ClientText(store).of(InvalidArgument("ask /v1/queues/orders")) == "ask /v1/queues/orders"
