"""Quotas hold for all processes of a server together."""

import json
import os
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from bide.model.message import REASON_LENGTH
from bide.server import quotas as module
from bide.server.quota_usage import QuotaUsage
from bide.server.settings import Quota, Settings
from bide.server.shared_stats import make_file
from tests.server.conftest import Serve
from tests.server.process import ServerProcess

Q = "/v1/queues/orders"


def test_a_record_is_that_of_its_namespace() -> None:
    uses = QuotaUsage()
    for number, name in enumerate((None, "shop", "mail", "shop")):
        with uses.of(name) as use:
            use.allowance += number
    found = []
    for name in (None, "shop", "mail", "new"):
        with uses.of(name) as use:
            found.append((use.allowance, use.counted))
    assert found == [(0.0, float("-inf")), (4.0, float("-inf")), (2.0, float("-inf")),
                     (0.0, float("-inf"))]  # fmt: skip
    uses.close()


def test_an_error_changes_nothing_and_keeps_nobody_waiting() -> None:
    uses = QuotaUsage()

    def fail() -> None:
        with uses.of("shop") as use:
            use.allowance = 9
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    with uses.of("shop") as use:
        assert use.allowance == 0
    uses.close()


COUNTING = """
import sys
from bide.server.quota_usage import QuotaUsage
uses = QuotaUsage(int(sys.argv[1]))
for number in range(2_000):
    with uses.of(f"n{number % 50}") as use:
        use.pending += 1
"""


@pytest.mark.process
def test_no_count_of_several_processes_is_lost() -> None:
    descriptor = make_file()
    words = [sys.executable, "-c", COUNTING, str(descriptor)]
    processes = [subprocess.Popen(words, pass_fds=[descriptor]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0] * 3
    uses = QuotaUsage(descriptor)
    total = 0.0
    for number in range(50):
        with uses.of(f"n{number}") as use:
            total += use.pending
    assert total == 6_000
    assert os.fstat(descriptor).st_size == 50 * 48
    uses.close()


@pytest.mark.process
def test_a_rate_holds_however_many_processes_there_are(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('workers = 3\n[quotas."*"]\nrate = 0.01\npending = 100\n')
    with ServerProcess(tmp_path, "--config", "serve.toml") as server:
        answers: list[tuple[int, Any]] = []

        def put(number: int) -> None:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
            kind = {"content-type": "application/json"}
            connection.request("POST", f"{Q}/messages", json.dumps({"body": number}), kind)
            reply = connection.getresponse()
            answers.append((reply.status, json.loads(reply.read())))
            connection.close()

        threads = [threading.Thread(target=put, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # One message at once, however slowly the bucket fills, and whichever process is asked.
        assert sorted(status for status, _ in answers) == [201] + [429] * 23
        assert "0.01 messages a second" in str(answers)


# What is counted, over HTTP.


def batch_of(**item: Any) -> dict[str, Any]:
    put = {"command": "put", "queue": "orders", "items": [{"id": "m", "data": "MQ==", **item}]}
    return {"commands": [put]}


def test_all_of_a_message_counts(serve: Serve, make_token: Any) -> None:
    quotas = {"shop": Quota(max_body=1_000)}
    client = serve(auth="required", quotas=quotas).with_token(make_token("shop", "produce"))
    assert client.put(f"{Q}/messages/{'i' * 100}", {"body": "x" * 898}).status == 201
    over = client.put(f"{Q}/messages/{'j' * 100}", {"body": "x" * 899})
    assert (over.status, over.problem["title"]) == (413, "That is too large")
    assert "take 1,001 bytes, the namespace may use 1,000 for a message" in over.problem["detail"]
    large = "y" * 1_000
    assert client.post(f"{Q}/messages", {"body": 1, "headers": {"h": large}}).status == 413
    assert client.post(f"{Q}/messages", {"body": "x" * 600, "group": "g" * 450}).status == 413
    assert client.post("/v1/batch", batch_of(headers={"h": large})).status == 413
    failures = [[1, 0, "w", large]]
    assert client.post("/v1/batch", batch_of(failures=failures)).status == 413


def test_a_reason_that_a_put_brings_along_is_bounded(serve: Serve) -> None:
    client = serve()
    at_limit, over = ([[1, 0, "w", "r" * n]] for n in (REASON_LENGTH, REASON_LENGTH + 1))
    assert client.post("/v1/batch", batch_of(failures=at_limit)).status == 200
    refused = client.post("/v1/batch", batch_of(failures=over))
    assert (refused.status, refused.problem["detail"]) == (
        400, "length of a reason in failures=8193 must be between 0 and 8,192",
    )  # fmt: skip
    assert client.post("/v1/batch", batch_of(failures=[[1, 0, "w" * 513, "r"]])).status == 400


def test_dead_and_kept_messages_count_and_deleting_makes_room(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECOUNT_EVERY", -1.0)
    client = serve(auth="required", quotas={"shop": Quota(pending=3)})
    client = client.with_token(make_token("shop", "admin"))
    client.send("PATCH", "/v1/queues/orders", {"keep": "1h"})
    for id in ("kept", "dead", "ready"):
        assert client.put(f"{Q}/messages/{id}", {"body": 1}).status == 201
    held = client.post(f"{Q}/claim", {"count": 3}).json["messages"]
    leases = {one["id"]: {"id": one["id"], "token": one["token"]} for one in held}
    client.post(f"{Q}/ack", {"leases": [leases["kept"]]})
    client.post(f"{Q}/bury", {"leases": [leases["dead"]], "reason": "no"})
    client.post(f"{Q}/retry", {"leases": [leases["ready"]]})
    full = client.put(f"{Q}/messages/more", {"body": 1})
    assert (full.status, full.problem["title"]) == (507, "The namespace is full")
    assert "may have 3 messages and has 3, dead and kept ones included" in full.problem["detail"]
    usage = client.get("/v1/usage").json
    assert (usage["namespace"], usage["messages"], usage["max_messages"]) == ("shop", 3, 3)
    assert "bide_quota_messages_used 3.0" in client.get("/metrics").data.decode()
    for number, state in enumerate(("dead", "acked")):
        assert client.post(f"{Q}/purge", {"state": state}).status == 200
        assert client.put(f"{Q}/messages/{number}", {"body": 1}).status == 201
        assert client.put(f"{Q}/messages/more", {"body": 1}).status == 507
    assert client.send("DELETE", f"{Q}/messages/ready").status == 200
    assert client.put(f"{Q}/messages/more", {"body": 1}).status == 201


def test_a_server_that_asks_for_tokens_has_quotas_by_default(serve: Serve, make_token: Any) -> None:
    server = serve()
    body = {"body": "x" * 1_000_000, "headers": {"h": "y" * 100_000}}
    assert server.post(f"{Q}/messages", body).status == 201
    told = server.get("/v1/usage").json
    assert (told["messages"], told["max_messages"], told["max_message_bytes"]) == (1, None, None)
    client = server.with_token(make_token("shop", "produce", "read"))
    told = client.get("/v1/usage").json
    assert (told["namespace"], told["messages"]) == ("shop", 0)
    assert (told["max_messages"], told["max_message_bytes"]) == (1_000_000, 1_048_576)
    assert client.post(f"{Q}/messages", body).status == 413
    assert client.post(f"{Q}/messages", {"body": "x" * 1_000_000}).status == 201
    assert "bide_quota_messages 1e+06" in client.get("/metrics").data.decode()


def test_a_quota_of_their_own_keeps_the_other_defaults() -> None:
    settings = Settings(quotas={"shop": Quota(rate=5)}, max_body=2_000_000)
    assert settings.quota("shop", asks=False) == Quota(rate=5)
    assert settings.quota("shop", asks=True) == Quota(rate=5, pending=1_000_000, max_body=2_000_000)
    lifted = Settings(quotas={"*": Quota(pending=10**12)})
    assert lifted.quota(None, asks=True).pending == 10**12
