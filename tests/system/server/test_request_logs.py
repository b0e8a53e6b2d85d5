"""The logs of requests: what a line says, and that none ever holds a secret."""

import base64
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bide.model.limits import MAX_LOGGED_PATH, MAX_NAME
from bide.observing.logs import JsonFormatter, PlainFormatter
from bide.server.access.rights import OPEN, Caller
from bide.server.app import ServerApp
from bide.server.logs import log_request
from bide.server.routes import OPERATIONS
from bide.server.settings import Settings
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.waiting import until

_CALLER = Caller(None, frozenset(), token="a1b2")
_TOLD = ("GET", "/v1/queues", 200, 0.0123456, "listQueues", "127.0.0.1", _CALLER, "r-7")


class Kept(logging.Handler):
    """Keeps the records that come."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    log, handler = logging.getLogger("bide.access"), Kept()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def test_a_request_is_an_object_with_what_it_was(kept: Kept) -> None:
    began = time.time()
    log_request(*_TOLD)
    (record,) = kept.records
    entry = msgspec.json.decode(JsonFormatter().format(record))
    assert began <= record.created <= time.time()
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "bide.access",
        "pid": os.getpid(),
        "message": "GET /v1/queues 200 12.3 ms client=127.0.0.1 namespace=- token=a1b2 request=r-7",
        "method": "GET",
        "path": "/v1/queues",
        "status": 200,
        "duration": 0.012346,
        "operation": "listQueues",
        "client": "127.0.0.1",
        "namespace": "",
        "token": "a1b2",
        "request": "r-7",
    }


def test_other_handlers_find_all_that_records_have(kept: Kept) -> None:
    log_request(*_TOLD)
    (record,) = kept.records
    said = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s %(path)s")
    assert " INFO bide.access GET /v1/queues 200 12.3 ms client=" in said.format(record)
    assert said.format(record).endswith(" /v1/queues")
    plain = logging.LogRecord("x", logging.INFO, "", 0, "", (), None)
    assert set(vars(plain)) <= set(vars(record))


def test_a_path_that_is_cut_says_so_whatever_was_cut_off(kept: Kept) -> None:
    log_request("GET", "/" + "p" * MAX_LOGGED_PATH + "\x7f", *_TOLD[2:])
    (record,) = kept.records
    assert f"GET /{'p' * (MAX_LOGGED_PATH - 2)}… 200" in record.getMessage()


def test_nothing_is_told_below_the_level(kept: Kept) -> None:
    logging.getLogger("bide.access").setLevel(logging.WARNING)
    log_request(*_TOLD)
    assert kept.records == []


def test_a_line_tells_who_asked_and_is_bounded(serve: Serve, make_token: Any, kept: Kept) -> None:
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "read"))
    assert shop.get("/v1/queues").status == 200
    raw = b"GET /v1/\x9b2J" + b"x" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(raw)
        assert connection.recv(100)
    until(lambda: len(kept.records) == 2)
    known, refused = (PlainFormatter("%(message)s").format(record) for record in kept.records)
    id = str(shop.token).split("_")[1]
    assert f" ms client=127.0.0.1 namespace=shop token={id} request=" in known
    assert len(refused) < 300
    assert "client=127.0.0.1 namespace=- token=-" in refused
    assert all(len(JsonFormatter().format(record)) < 1_000 for record in kept.records)


def test_control_characters_of_a_path_are_escaped_for_every_handler(kept: Kept) -> None:
    log_request("GET", "/v1/\x9b2J\x1b[2J", 404, 0.1, "", "127.0.0.1", OPEN)
    assert kept.records[0].getMessage().startswith(r"GET /v1/\x9b2J\x1b[2J 404 100.0 ms client=")


def test_an_answer_has_the_id_of_its_line_and_is_kept_by_nobody(
    serve: Serve, make_token: Any, kept: Kept
) -> None:
    client = serve(auth="required")
    known = client.with_token(make_token("shop", "admin"))
    replies = [
        known.get("/v1/queues"),
        client.get("/v1/queues"),
        client.get("/none"),
        known.send("PATCH", "/healthz"),
        known.get("/v1/queues/" + "x" * 9_000),
        client.get("/openapi.json"),
        known.get("/metrics"),
        known.get("/v1/queues/q/messages/m"),
    ]
    until(lambda: len(kept.records) == len(replies))
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len({*ids}) == len(ids)
    assert [record.__dict__["request"] for record in kept.records] == ids
    for reply in replies:
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
    body = known.put("/v1/queues/q/messages/m", {"body": "<script>"}).headers
    assert body["x-content-type-options"] == "nosniff"


def test_a_message_is_one_line_whatever_it_says() -> None:
    text = "a queue\n2026-11-28 INFO forged\r\x1b[2J" + "x" * 100_000
    record = logging.LogRecord("bide", logging.INFO, "", 0, "%s", (text,), None)
    line = PlainFormatter("%(levelname)s %(message)s").format(record)
    assert line.isprintable()
    assert line.startswith(r"INFO a queue\n2026-11-28 INFO forged\r\x1b[2Jxxx")
    assert len(line) < 5_000
    assert len(JsonFormatter().format(record)) < 5_000
    try:
        raise ValueError("a traceback has its lines")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert len(PlainFormatter("%(message)s").format(record).splitlines()) == 5


CANARY = "CANARY-7f3a"

ENCODED = base64.b64encode(json.dumps(CANARY).encode()).decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "actions.log"


@pytest.fixture
def server(serve: Serve, tmp_path: Path, log: Path) -> Client:
    url = f"sqlite:///{tmp_path}/bide.db"
    return serve(ServerApp(Settings(store=url, auth="required", push=False, action_log=str(log))))


def lines(log: Path, count: int) -> list[dict[str, Any]]:
    """Return the lines of a log, of which the last is written after its answer was sent."""
    until(lambda: log.read_text().count("\n") >= count)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_line_says_who_did_what_from_where_and_with_what_result(
    server: Client, make_token: Any, log: Path
) -> None:
    text = make_token("shop", "produce", "consume", name="backend")
    client = server.with_token(text)
    client.post(f"{Q}/put", {"messages": [{"body": 1}, {"body": 2}]})
    (one,) = client.post(f"{Q}/claim").json["messages"]
    client.post(f"{Q}/ack", {"leases": [{"id": one["id"], "token": one["token"]}]})
    client.get(Q)
    client.send("DELETE", f"{Q}/messages/none")
    server.with_token("wrong").get(Q)
    found = lines(log, 6)
    common = {
        "who": "backend",
        "token": text.split("_")[1],
        "client": "127.0.0.1",
        "namespace": "shop",
        "queue": "orders",
    }
    told: list[dict[str, Any]] = [
        {"act": "putMany", "result": "done", "messages": 2},
        {"act": "claim", "result": "done", "messages": 1},
        {"act": "ack", "result": "done", "messages": 1, "target": one["id"]},
        {"act": "counts", "result": "forbidden"},
        {"act": "cancel", "result": "not-found", "target": "none"},
    ]
    for line, expected in zip(found, told, strict=False):
        assert line == {**common, **expected, "time": line["time"], "request": line["request"]}
    refused = found[-1]
    assert (refused["act"], refused["result"]) == ("counts", "unauthorized")
    assert "who" not in refused
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_each_command_of_a_batch_has_a_line(server: Client, make_token: Any, log: Path) -> None:
    client = server.with_token(make_token("shop", "produce", "consume"))
    put = {"command": "put", "queue": "orders", "items": [{"id": "a", "data": "MQ=="}]}
    claim = {"command": "claim", "queue": "mail", "count": 5, "lease": 1_000, "holder": "w"}
    assert client.post("/v1/batch", {"commands": [put, claim]}).status == 200
    purge = {"command": "purge", "queue": "orders", "state": "dead"}
    assert client.post("/v1/batch", {"commands": [put, purge]}).status == 403
    client.post("/v1/batch", {"commands": "nonsense"})
    undo = {"command": "undo", "queue": "orders", "undo": "01kb2n8m7dzz4r6y0t5v9x3h1q"}
    assert client.post("/v1/batch", {"commands": [undo]}).status == 200
    found = [
        (one["act"], one.get("queue"), one.get("messages"), one["result"]) for one in lines(log, 6)
    ]
    assert found == [
        ("put", "orders", 1, "done"),
        ("claim", "mail", 0, "done"),
        ("put", "orders", 0, "forbidden"),
        ("purge", "orders", 0, "forbidden"),
        ("batch", None, None, "invalid-argument"),
        ("undo", "orders", None, "nothing-to-undo"),
    ]


def test_a_line_names_the_one_message_or_worker_that_it_is_about(
    server: Client, make_token: Any, log: Path
) -> None:
    client = server.with_token(make_token("shop", "admin"))
    client.put(f"{Q}/messages/a%2Fb", {"body": 1, "delay": 60})
    made = client.post(f"{Q}/messages", {"body": 1, "delay": 60}).json["id"]
    client.post("/v1/workers/web1:7/stop", {})
    items = [{"id": id, "data": "MQ=="} for id in ("c", "d")]
    commands: list[dict[str, Any]] = [
        {"command": "put", "items": items[:1]},
        {"command": "put", "items": items},
        {"command": "ack", "leases": [["c", 1]]},
        {"command": "history", "id": "c"},
        {"command": "cancel", "ids": ["c"]},
        {"command": "cancel", "ids": ["c", "d"]},
        {"command": "cancel", "where": {"after": 0}},
        {"command": "count"},
    ]
    batch = {"commands": [{**command, "queue": "orders"} for command in commands]}
    assert client.post("/v1/batch", batch).status == 200
    reader = server.with_token(make_token("shop", "read"))
    cancel = {"command": "cancel", "queue": "orders", "ids": ["d"]}
    assert reader.post("/v1/batch", {"commands": [cancel]}).status == 403
    assert [(line["act"], line.get("target")) for line in lines(log, 12)] == [
        ("putNamed", "a/b"),
        ("put", made),
        ("stopWorker", "web1:7"),
        ("put", "c"),
        ("put", None),
        ("ack", "c"),
        ("history", "c"),
        ("cancel", "c"),
        ("cancel", None),
        ("cancel", None),
        ("count", None),
        ("cancel", "d"),
    ]


def test_no_log_ever_holds_bodies_or_secrets(
    server: Client, make_token: Any, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    admin = server.with_token(text := make_token("shop", "admin", name="ops"))
    secrets = [CANARY, text.split("_", 2)[2]]
    message = {"body": CANARY, "headers": {"key": CANARY}, "group": "g"}
    hook = {
        "queue": "hooked",
        "url": f"https://shop.example/?key={CANARY}",
        "headers": {"authorization": CANARY},
    }
    made = admin.put("/v1/subscriptions/hooks", hook)
    secrets.append(made.json["secret"])
    for n in range(2):
        admin.put(f"{Q}/messages/m{n}", message)
    (lease,) = admin.post(f"{Q}/claim").json["messages"]
    secrets.append(lease["token"].partition(".")[2])
    leases = [{"id": lease["id"], "token": lease["token"]}]
    bodies: dict[str, Any] = {
        "putNamed": message,
        "put": message,
        "putMany": {"messages": [message]},
        "retry": {"leases": leases, "reason": CANARY},
        "bury": {"leases": leases, "reason": CANARY},
        "ack": {"leases": leases},
        "extend": {"leases": leases},
        "release": {"leases": leases},
        "endLease": {"reason": CANARY},
        "putSubscription": hook,
        "changeSubscription": hook,
        "pauseSubscription": {"reason": CANARY},
        "purge": {"state": "dead"},
        "batch": {
            "commands": [
                {"command": "put", "queue": "orders", "items": [{"id": "b", "data": ENCODED}]},
                {"command": "retry", "queue": "orders", "leases": [], "reason": CANARY},
            ]
        },
    }
    for token in (text, text[:-1] + "x", None):
        admin.token = token
        for operation in OPERATIONS:
            if operation.name == "events":
                continue
            path = re.sub(r"\{\w+\}", "m0", operation.path.replace("{queue}", "orders"))
            reply = admin.send(
                operation.method,
                f"{path}?key={CANARY}" if operation.takes is None else path,
                bodies.get(operation.name, {}) if operation.takes else None,
                cookie=CANARY,
            )
            if operation.name == "rotateSecret" and reply.status == 200:
                secrets.append(reply.json["secret"])
    until(lambda: caplog.text.count("GET /docs ") == 3)
    acts = {line["act"] for line in lines(log, 90)}
    assert {one.name for one in OPERATIONS if one.right is not None} - acts == {"events"}
    assert {"put", "retry"} <= acts
    logged = (
        log.read_text()
        + caplog.text
        + "".join(
            str(record.__dict__) for record in caplog.records if record.name.startswith("bide.")
        )
    )
    assert "client=127.0.0.1" in logged
    for secret in secrets:
        assert secret not in logged


def test_a_log_that_cannot_be_opened_is_told_of(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"action_log=.* cannot be opened"):
        serve(action_log=str(tmp_path / "nowhere" / "log"))


def test_a_line_that_the_disk_does_not_take_goes_to_the_log_of_the_server(
    serve: Serve, make_token: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(auth="required", action_log="/dev/full")
    client = client.with_token(make_token("shop", "admin", name="backend"))
    assert client.post(f"{Q}/messages", {"body": CANARY}).status == 201  # it goes on

    def told() -> list[str]:
        return [text for record in caplog.records if "action log" in (text := record.getMessage())]

    until(lambda: bool(told()))
    assert told()[0].startswith("the action log cannot be written (No space left on device): {")
    line = json.loads(told()[0].partition(": ")[2])
    assert (line["act"], line["who"], line["result"]) == ("put", "backend", "done")
    assert CANARY not in caplog.text


IN_PART = """
import logging, os, resource, signal, sys
from bide.server.logs import Act, ActionLog
logging.basicConfig(format="%(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = ActionLog(sys.argv[1])
acts = [Act("put", "orders", number) for number in range(3)]
who = {"who": "ann", "token": "t", "client": "", "namespace": None}
log.write(acts[:1], **who)
size = os.stat(sys.argv[1]).st_size
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))  # as on a disk that fills up
log.write(acts[1:2], **who)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.write(acts[2:], **who)
log.close()
"""
"""In a process of its own: the limit is on all files that a process writes."""


@pytest.mark.process
def test_a_line_that_was_written_in_part_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ended = subprocess.run(
        [sys.executable, "-c", IN_PART, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, part, third = path.read_text().splitlines()
    assert [json.loads(line)["messages"] for line in (first, third)] == [0, 2]
    assert len(part) == 10
    (line,) = ended.stderr.splitlines()
    assert json.loads(line.partition(": ")[2])["messages"] == 1


def test_names_in_lines_are_bounded(server: Client, make_token: Any, log: Path) -> None:
    client = server.with_token(make_token("shop", "admin"))
    long = "q" * 8_000
    assert client.get(f"/v1/queues/{long}").status == 400
    count = {"command": "count", "queue": long}
    assert client.post("/v1/batch", {"commands": [count]}).status == 400
    for line in lines(log, 2):
        assert line["queue"] == "q" * MAX_NAME + "…"
