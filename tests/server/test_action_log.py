"""The action log: each act in a line, and neither it nor the access log ever holds a secret."""

import base64
import json
import re
import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from bide.model.limits import MAX_NAME
from bide.server.app import ServerApp
from bide.server.logs import Act, ActionLog
from bide.server.routes import OPERATIONS
from bide.server.settings import Settings
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.test_clients import until

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
    told = [
        ("putMany", "done", 2),
        ("claim", "done", 1),
        ("ack", "done", 1),
        ("counts", "forbidden", None),
        ("cancel", "not-found", None),
    ]
    for line, (act, result, messages) in zip(found, told, strict=False):
        expected = {
            **common,
            "act": act,
            "result": result,
            "time": line["time"],
            "request": line["request"],
        }
        assert line == expected | ({} if messages is None else {"messages": messages})
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


def test_a_line_that_was_written_in_part_spoils_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    log = ActionLog(str(path))
    acts = [Act("put", "orders", number) for number in range(3)]
    who: dict[str, Any] = {"who": "ann", "token": "t", "client": "", "namespace": None}
    log.write(acts[:1], **who)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))  # as on a disk that fills up
    try:
        log.write(acts[1:2], **who)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    log.write(acts[2:], **who)
    log.close()
    first, part, third = path.read_text().splitlines()
    assert [json.loads(line)["messages"] for line in (first, third)] == [0, 2]
    assert len(part) == 10
    assert json.loads(caplog.messages[0].partition(": ")[2])["messages"] == 1


def test_names_in_lines_are_bounded(server: Client, make_token: Any, log: Path) -> None:
    client = server.with_token(make_token("shop", "admin"))
    long = "q" * 8_000
    assert client.get(f"/v1/queues/{long}").status == 400
    count = {"command": "count", "queue": long}
    assert client.post("/v1/batch", {"commands": [count]}).status == 400
    for line in lines(log, 2):
        assert line["queue"] == "q" * MAX_NAME + "…"
