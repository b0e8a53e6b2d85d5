"""What is refused, and what the problem document says: the field and the fix, no secrets."""

import gzip
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bide.model.errors import InvalidArgument, StoreUnavailable
from bide.model.limits import MAX_BUCKETS
from bide.model.times import LATEST
from bide.server.app import ServerApp
from bide.server.operation import Operation
from bide.server.problem import ClientText
from bide.server.routes import OPERATIONS
from bide.server.settings import Quota, Settings
from bide.server.validate import LONGEST_FORECAST
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve
from tests.system.server.test_events import listening

GUARDED = [operation for operation in OPERATIONS if operation.right is not None]
TAKING = [operation for operation in OPERATIONS if operation.takes is not None]


def name_of(operation: Operation) -> str:
    return operation.name


every_guarded = pytest.mark.parametrize("operation", GUARDED, ids=name_of)


def path_of(operation: Operation) -> str:
    return (
        operation.path.replace("{queue}", "orders").replace("{id}", "m").replace("{name}", "shop")
    )


BODIES = [
    b"",
    b"{",
    b"[" * 100_000,
    b'{"body": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"body": "\xff\xfe", "messages": "\xff"}',
    b'{"body": "\\ud800"}',
    '{"body": 1}'.encode("utf-16"),
    b"[]",
    b'{"nonsense": 1}',
    b"NaN",
]


def test_a_body_that_cannot_be_is_refused(client: Client) -> None:
    for operation in TAKING:
        for data in BODIES:
            reply = client.send(operation.method, path_of(operation), data=data)
            if not data and reply.status == 200:
                continue  # everything has a default
            assert 400 <= reply.status < 500, (data[:50], reply)
            assert reply.problem["detail"], data[:50]


@pytest.mark.parametrize(
    ("path", "content", "fix"),
    [
        ("messages", {"body": 1, "dely": "1m"}, "did you mean delay?"),
        ("messages", {"body": 1, "colour": 1}, "there are priority, attempts, group, delay, at, "),
        ("put", {"messages": [{"body": 1, "prio": 1}]}, "did you mean priority?"),
        ("put", {"messages": [], "on_conflict": "merge"}, "there are keep, replace"),
        ("messages", {"body": 1, "at": "2030-01-01T00:00"}, "2030-01-01T09:00:00Z or 2030-01-01T"),
        ("messages?on_conflict=merge", {"body": 1}, "there are keep, raise, replace"),
    ],
)
def test_a_slip_is_told_with_what_there_is(
    client: Client, path: str, content: Any, fix: str
) -> None:
    refused = client.post(f"{Q}/{path}", content)
    assert refused.status == 400
    assert fix in refused.problem["detail"]
    assert "datetime" not in refused.problem["detail"]


def test_a_name_full_of_places_is_refused(client: Client) -> None:
    # A pattern that looks behind each place takes many times as long as the client waits.
    assert client.post(f"{Q}/messages", {" - at `$" * 100_000 + "\n": 1}).status == 400


def test_a_state_that_there_is_none_of_is_told_with_those_there_are(client: Client) -> None:
    refused = client.get(f"{Q}/messages?state=pending")
    assert (refused.status, refused.problem["field"]) == (400, "state")
    assert "there are " in refused.problem["detail"]
    assert "delayed" in refused.problem["detail"]


def test_a_body_of_another_kind_is_refused_where_bytes_cannot_be(client: Client) -> None:
    for operation in TAKING:
        if operation.takes_bytes:
            continue  # a body of any other kind is stored as it is
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"):
            reply = client.send(
                operation.method, path_of(operation), data=b"a=1", content_type=kind
            )
            assert (reply.status, reply.problem["field"]) == (400, "content-type")
            assert "application/json" in reply.problem["detail"]


def test_a_body_that_is_compressed_is_refused(client: Client) -> None:
    for operation in TAKING:
        data = gzip.compress(b'{"body": 1, "messages": [], "leases": [], "commands": []}')
        for kind in ("application/json", *["image/png"] * operation.takes_bytes):
            reply = client.send(
                operation.method,
                path_of(operation),
                data=data,
                content_encoding="gzip",
                content_type=kind,
            )
            assert (reply.status, reply.problem["field"]) == (400, "content-encoding")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa8commands",
        b"\x81\xa8commands\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa8commands" + b"\x91" * 5_000 + b"\x90",
        b"\x90",
        b"\x01",
        b"\x81\xa8nonsense\x01",
        b"\x81\xa8commands\xa1\xff",
        b'{"commands": []}',
    ],
)
def test_packed_commands_that_cannot_be_are_refused(client: Client, data: bytes) -> None:
    reply = client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")
    assert 400 <= reply.status < 500
    assert reply.problem["detail"]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(serve: Serve) -> None:
    client = serve(max_request=2_000)
    for operation in TAKING:
        with socket.create_connection(("127.0.0.1", client.port)) as raw:
            head = f"{operation.method} {path_of(operation)} HTTP/1.1\r\nHost: localhost\r\n"
            head += "Content-Type: application/json\r\n"
            raw.sendall(f"{head}Content-Length: 5000\r\n\r\n".encode())
            assert b" 413 " in raw.recv(200)
        with socket.create_connection(("127.0.0.1", client.port)) as raw:
            raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(2):
                raw.sendall(b"400\r\n" + b"x" * 1_024 + b"\r\n")
            assert b" 413 " in raw.recv(200)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"body": 1, "delay": "soon"}, "delay"),
        ({"body": 1, "delay": -1}, "delay"),
        ({"body": 1, "delay": 1e300}, "delay"),
        ({"body": 1, "delay": 1, "at": 5}, None),
        ({"body": 1, "at": "2030-01-01T00:00:00"}, "at"),
        ({"body": 1, "at": "tomorrow"}, "at"),
        ({"body": 1, "at": 1_893_456_000_000}, "at"),
        ({"body": 1, "at": 2027}, "at"),
        ({"body": 1, "at": "2027"}, "at"),
        ({"body": 1, "delay": 1_893_456_000}, "delay"),
        ({"body": 1, "priority": 256}, "priority"),
        ({"body": 1, "priority": "high"}, "priority"),
        ({"body": 1, "attempts": 0}, "attempts"),
        ({"body": 1, "expires": 0}, "expires"),
        ({"body": 1, "group": "g" * 600}, "group"),
        ({"body": 1, "id": "a\nb"}, "id"),
        ({"body": 1, "headers": {"a": 1}}, "headers[...]"),
        ({"body": 1, "bytes": "aGk="}, "body"),
        ({"bytes": "***"}, "bytes"),
        ({}, "body"),
        ({"body": 1, "delays": 1}, "delays"),
        ({"body": "x" * 1_100_000}, "body"),
    ],
)
def test_the_problem_names_the_field(client: Client, content: Any, field: str | None) -> None:
    reply = client.post(f"{Q}/messages", content)
    assert reply.status == 400
    assert reply.problem.get("field") == field


def test_a_parameter_that_would_be_ignored_is_refused_where_something_changes(
    client: Client,
) -> None:
    client.put(f"{Q}/messages/a", {"body": 1})
    for method, path in (
        ("DELETE", f"{Q}/messages/a"),
        ("DELETE", Q),
        ("POST", f"{Q}/revive"),
        ("PATCH", f"{Q}/messages/a"),
        ("POST", f"{Q}/pause"),
    ):
        refused = client.send(method, f"{path}?dry_run=true", {} if method != "DELETE" else None)
        assert (refused.status, refused.problem["field"]) == (400, "dry_run"), path
    assert client.get(f"{Q}/messages/a?v=1").json["state"] == "ready"
    assert client.send("DELETE", f"{Q}/messages/a").status == 200


def test_the_problem_names_the_parameter_or_setting(client: Client) -> None:
    for field, value in (("keep", -1), ("history", "x"), ("result_ttl", -1), ("group_rate", "1/x")):
        assert client.send("PATCH", Q, {field: value}).problem["field"] == field
    for path in (f"{Q}/forecast?horizon=x", "/v1/events?counts=x", "/v1/search?error="):
        assert client.get(path).problem["field"] == path.partition("?")[2].partition("=")[0]


@pytest.mark.parametrize(
    "path",
    [
        f"{Q}/messages?state=gone",
        f"{Q}/messages?limit=0",
        f"{Q}/messages?cursor=x",
        f"{Q}/messages?cursor=9.9.9&state=dead",
        f"{Q}/messages?nonsense=1",
        f"{Q}/messages?group=%FF",
        f"{Q}/forecast?bucket=0",
        f"{Q}/messages/%FF",
        "/v1/queues/-x",
        "/v1/queues/a%2Fb%2Fc",
        "/v1/queues/bide.server%2Ftokens",
        f"/v1/queues/{'q' * 200}",
        f"{Q}/messages/{'i' * 600}",
        "/v1/queues?prefix=%25",
        f"{Q}/messages?state=leased&cursor=id:x",
    ],
)
def test_a_path_or_query_that_cannot_be_is_refused(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status in (200, 400)
    if reply.status == 400:
        assert reply.problem["detail"]
    else:
        assert "cursor=9.9.9" in path


def test_what_is_not_there(client: Client) -> None:
    assert client.get("/v2").problem["status"] == 404
    wrong = client.send("DELETE", f"{Q}/claim")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert client.send("TRACE", "/healthz").status == 405


@pytest.mark.parametrize("path", ["/", "/dashboard", "/dashboard/queues"])
def test_who_looks_for_the_dashboard_hears_how_it_is_switched_on(client: Client, path: str) -> None:
    assert "bide serve --dashboard" in client.get(path).problem["detail"]
    assert "dashboard" not in client.get("/v2").problem["detail"]


# Commands on the wire.


LONG = {"done": 1, "text": "x" * 201}


def reporting(report: dict[str, Any]) -> dict[str, Any]:
    return {"lease": None, "progress": [report]}


@pytest.mark.parametrize(
    "command",
    [
        {"command": "put", "queue": "q", "items": [{"id": "a", "data": "ew=="}]},
        {"command": "put", "queue": "q", "items": [{"id": "", "data": "MQ=="}]},
        {"command": "put", "queue": "q", "items": [{"id": "a", "data": "MQ==", "priority": 300}]},
        {"command": "put", "queue": "q", "items": [{"id": "a", "data": "MQ==", "delay": -1}]},
        {"command": "put", "queue": "q", "items": [{"id": "a", "data": "MQ==", "at": 1 << 60}]},
        {"command": "put", "queue": "q", "items": [{"id": "a", "data": "MQ==", "attempts": 0}]},
        {"command": "put", "queue": "-", "items": []},
        {"command": "claim", "queue": "q", "count": 10**9, "lease": 1, "holder": "w"},
        {"command": "claim", "queue": "q", "count": 1, "lease": -1, "holder": "w"},
        {"command": "claim", "queue": "q", "count": 1, "lease": 1, "holder": ""},
        {"command": "ack", "queue": "q", "leases": [["a", 1 << 63]]},
        {"command": "cancel", "queue": "q", "ids": ["a"], "running": 1},
        {"command": "extend", "queue": "q", "leases": [["a", 1]], "lease": None},
        {"command": "extend", "queue": "q", "leases": [], "lease": 1, "progress": [{"done": 1}]},
        {"command": "extend", "queue": "q", "leases": [["a", 1]], **reporting({"done": "1"})},
        {"command": "extend", "queue": "q", "leases": [["a", 1]], **reporting({"of": 1})},
        {"command": "extend", "queue": "q", "leases": [["a", 1]], **reporting(LONG)},
        {"command": "bury", "queue": "q", "ids": [""]},
        {"command": "purge", "queue": "q", "state": "dead", "ids": [""]},
        {"command": "purge", "queue": "q", "state": "ready", "ids": ["a"]},
        {"command": "scan", "queue": "q", "limit": 0},
        {"command": "scan", "queue": "q", "cursor": "x", "state": "dead"},
        {"command": "scan", "queue": "q", "cursor": "1.1.1"},
        {"command": "forecast", "queue": "q", "bucket": 0, "buckets": 1},
        {"command": "forecast", "queue": "q", "bucket": 1, "buckets": 1 << 40},
        {"command": "configure", "queue": "q", "keep": -1},
        {"command": "drop", "queue": "q"},
        {"command": "cancel", "queue": "q", "where": {}, "dry_runs": True},
        {"command": "cancel", "queue": "q", "where": {"befor": 1}},
        {"command": "put", "queue": "q", "items": [{"id": "a", "data": "MQ==", "dely": 1}]},
        {"command": "bulk", "queue": "q", "verb": "cancel", "undo": "0" * 26, "were": {}},
        {
            "command": "bulk",
            "queue": "q",
            "verb": "cancel",
            "undo": "01kb2n8m7dzz4r6y0t5v9x3h1q",
            "ids": [str(n) for n in range(501)],
        },
        {"command": "put", "queue": "q", "items": [], "origin": {"outbox": "o", "rows": ["1"]}},
        {"command": "cancel", "queue": "q", "ids": ["a"], "origin": {"outbox": "o", "rows": []}},
        {
            "command": "cancel",
            "queue": "q",
            "ids": ["a", "b"],
            "origin": {"outbox": "o", "rows": ["1", "1"]},
        },
        {
            "command": "cancel",
            "queue": "q",
            "where": {"group": "g"},
            "origin": {"outbox": "o", "rows": []},
        },
        {
            "command": "reschedule",
            "queue": "q",
            "ids": ["a"],
            "at": 1,
            "origin": {"outbox": "o", "rows": ["1 2"]},
        },
        {
            "command": "reschedule",
            "queue": "q",
            "ids": ["a"],
            "at": 1,
            "origin": {"outbox": "o", "rows": ["1"], "before": "/"},
        },
    ],
)
def test_a_command_that_cannot_be_undoes_its_batch(client: Client, command: Any) -> None:
    put = {"command": "put", "queue": "q", "items": [{"id": "first", "data": "MQ=="}]}
    reply = client.post("/v1/batch", {"commands": [put, command]})
    assert reply.status == 400
    assert reply.problem["detail"]
    assert client.get("/v1/queues").json["queues"] == []


def test_settings_that_cannot_be_are_refused() -> None:
    from bide.model.errors import InvalidArgument

    for wrong in (
        {"port": 70_000},
        {"workers": 0},
        {"store": "memory://", "workers": 2},
        {"store": "nonsense"},
        {"quotas": {"a/b": Quota()}},
        {"quotas": {"*": Quota(rate=0)}},
        {"quotas": {"*": Quota(byte_rate=-1.0)}},
        {"quotas": {"*": Quota(stored=-1)}},
        {"quotas": {"*": Quota(longest_delay="5 mins")}},
        {"push_networks": ["x"]},
        {"push_lease": 0.1},
    ):
        with pytest.raises(InvalidArgument):
            ServerApp(Settings(**wrong))


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


def test_a_forecast_is_asked_for_a_time_that_stores_can_count(client: Client) -> None:
    def forecast(bucket: int, buckets: int) -> Reply:
        command = {"command": "forecast", "queue": "orders", "bucket": bucket, "buckets": buckets}
        return client.post("/v1/batch", {"commands": [command]})

    refused = forecast(LATEST, 3)
    assert refused.status == 400
    assert f"they have at most {LONGEST_FORECAST:,} ms" in refused.problem["detail"]
    for bucket, buckets in ((LATEST, 2), (LONGEST_FORECAST // MAX_BUCKETS, MAX_BUCKETS)):
        answered = forecast(bucket, buckets)
        assert answered.status == 200
        assert answered.json["replies"][0]["buckets"] == [0] * buckets
