"""Quotas hold for all processes of a server together, and for requests at the same time."""

import asyncio
import base64
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Put
from bide.model.message import REASON_LENGTH, Item
from bide.server.access.admission import Admission
from bide.server.access.rights import Caller
from bide.server.access.tokens import Tokens
from bide.server.limits import quotas as module
from bide.server.limits.admitted import HISTORY_RECORD
from bide.server.limits.quotas import Quotas
from bide.server.limits.slow_reads import SlowReads
from bide.server.problem import Problem
from bide.server.settings import Quota, Settings
from bide.server.shared_state import NamespaceUsage, QuotaUsage, SharedState, make_files
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.raw import request, status_of

# What is counted, over HTTP.


def batch_of(**item: Any) -> dict[str, Any]:
    put = {"command": "put", "queue": "orders", "items": [{"id": "m", "data": "MQ==", **item}]}
    return {"commands": [put]}


def test_all_of_a_message_counts(serve: Serve, make_token: Any) -> None:
    quotas = {"shop": Quota(max_body=1_000)}
    client = serve(auth="required", quotas=quotas).with_token(make_token("shop", "admin"))
    assert client.put(f"{Q}/messages/{'i' * 100}", {"body": "x" * 898}).status == 201
    over = client.put(f"{Q}/messages/{'j' * 100}", {"body": "x" * 899})
    assert (over.status, over.problem["title"]) == (413, "Too large")
    assert "take 1,001 bytes, the namespace may use 1,000 for a message" in over.problem["detail"]
    large = "y" * 1_000
    assert client.post(f"{Q}/messages", {"body": 1, "headers": {"h": large}}).status == 413
    assert client.post(f"{Q}/messages", {"body": "x" * 600, "group": "g" * 450}).status == 413
    assert client.post("/v1/batch", batch_of(headers={"h": large})).status == 413
    failures = [[1, 0, "w", large]]
    assert client.post("/v1/batch", batch_of(failures=failures)).status == 413


def test_a_full_namespace_takes_no_put_of_an_id_that_exists_and_edits(
    serve: Serve, make_token: Any
) -> None:
    quotas = {"shop": Quota(pending=1, longest_delay="1h")}
    client = serve(auth="required", quotas=quotas).with_token(make_token("shop", "admin"))
    message = {"body": 1, "delay": "1h"}
    statuses = [client.put(f"{Q}/messages/m", message).status for _ in range(2)]
    assert statuses == [201, 507]
    assert client.get(f"{Q}/messages/m").status == 200
    assert client.send("PATCH", f"{Q}/messages/m", {"body": 2}).status == 200
    refused = client.send("PATCH", f"{Q}/messages/m", {"delay": "2h"})
    assert (refused.status, refused.problem["field"]) == (400, "delay")
    assert "up to 1h ahead; let it be due sooner" in refused.problem["detail"]


def test_nothing_gets_a_due_time_beyond_the_longest_delay(serve: Serve, make_token: Any) -> None:
    client = serve(auth="required", quotas={"shop": Quota(longest_delay="1h")})
    client = client.with_token(make_token("shop", "admin"))
    client.put(f"{Q}/messages/m", {"body": 1, "group": "g"})
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "revive", {}),
        ("POST", "revive", {"undo": True}),
        ("POST", "revive", {"ids": ["m"]}),
        ("PATCH", "messages/m", {}),
        ("PATCH", "messages?group=g", {}),
        ("PATCH", "messages?group=g&undo=true", {}),
    ]
    for method, path, asked in requests:
        refused = client.send(method, f"{Q}/{path}", {**asked, "delay": "2h"})
        assert (refused.status, refused.problem.get("field")) == (400, "delay"), (path, asked)
        taken = client.send(method, f"{Q}/{path}", {**asked, "delay": "1h"})
        assert taken.status == 200, (path, asked)
    for command in (
        {"command": "revive", "ids": ["m"]},
        {"command": "reschedule", "ids": ["m"]},
        {"command": "bulk", "verb": "revive", "undo": "u" * 22},
    ):
        batch = {"commands": [{**command, "queue": "orders", "delay": 7_200_000}]}
        assert client.post("/v1/batch", batch).status == 400


def test_a_reason_that_a_put_brings_along_is_bounded(serve: Serve) -> None:
    client = serve()
    at_limit, over = ([[1, 0, "w", "r" * n]] for n in (REASON_LENGTH, REASON_LENGTH + 1))
    assert client.post("/v1/batch", batch_of(failures=at_limit)).status == 200
    refused = client.post("/v1/batch", batch_of(failures=over))
    assert refused.status == 400
    assert "Expected `str` of length <= 8192" in refused.problem["detail"]
    assert client.post("/v1/batch", batch_of(failures=[[1, 0, "w" * 513, "r"]])).status == 400


def test_dead_and_kept_messages_count_and_deleting_makes_room(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECOUNT_EVERY", -1.0)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
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
    assert (
        "may have 3 messages and has 3, dead and kept ones included: no room for 1 more"
        in full.problem["detail"]
    )
    tag = client.get(f"{Q}/messages/ready").headers["etag"]
    assert client.put(f"{Q}/messages/ready", {"body": 2}, if_match=tag).status == 200
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
    assert client.get("/v1/usage").json == {
        "namespace": "shop",
        "messages": 0,
        "max_messages": 1_000_000,
        "stored_bytes": 0,
        "max_stored_bytes": 1 << 30,
        "queues": 0,
        "max_queues": 1_000,
        "max_message_bytes": 1 << 20,
        "max_rate": None,
        "max_bytes_per_second": 100 << 20,
        "longest_delay": None,
        "max_subscriptions": 100,
        "max_push_concurrency": None,
    }
    assert client.post(f"{Q}/messages", body).status == 413
    assert client.post(f"{Q}/messages", {"body": "x" * 1_000_000}).status == 201
    assert "bide_quota_messages 1e+06" in client.get("/metrics").data.decode()


def test_a_quota_of_their_own_keeps_the_other_defaults() -> None:
    settings = Settings(quotas={"shop": Quota(rate=5)}, max_body=2_000_000)
    assert settings.quota("shop", requires_tokens=False) == Quota(rate=5)
    assert settings.quota("shop", requires_tokens=True) == Quota(
        rate=5,
        pending=1_000_000,
        max_body=2_000_000,
        stored=1 << 30,
        byte_rate=100 << 20,
        queues=1_000,
        subscriptions=100,
    )
    lifted = Settings(quotas={"*": Quota(pending=10**12)})
    assert lifted.quota(None, requires_tokens=True).pending == 10**12


def test_stored_bytes_are_bounded_and_deleting_makes_room(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECOUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(module, "WEIGH_EVERY", -60.0)
    server = serve(auth="required", quotas={"shop": Quota(stored=10_000)})
    client = server.with_token(make_token("shop", "admin"))
    body = {"body": "x" * 998}  # 1,000 bytes, and a byte of the id
    for id in "0123456789"[:9]:
        assert client.put(f"{Q}/messages/{id}", body).status == 201
    client.get("/v1/usage")  # waits for a count that may have begun before some of these
    used = client.get("/v1/usage").json
    assert (used["stored_bytes"], used["max_stored_bytes"]) == (9_009, 10_000)
    assert "bide_quota_bytes_used 9009.0" in client.get("/metrics").data.decode()
    assert client.put(f"{Q}/messages/a", {"body": "x" * 989}).status == 507  # one byte too many
    assert client.put(f"{Q}/messages/a", {"body": "x" * 988}).status == 201
    full = client.put(f"{Q}/messages/b", {"body": 1})
    assert (full.status, full.problem["title"]) == (507, "The namespace is full")
    assert "may take 10,000 bytes and take 10,000" in full.problem["detail"]
    batch = {"command": "put", "queue": "more", "items": [{"id": "m", "data": "MTExMQ=="}]}
    assert client.post("/v1/batch", {"commands": [batch]}).status == 507
    other = server.with_token(make_token("mail", "admin"))
    assert other.put(f"{Q}/messages/b", body).status == 201
    assert client.send("DELETE", f"{Q}/messages/0").status == 200
    assert client.put(f"{Q}/messages/b", {"body": 1}).status == 201


def test_what_was_there_before_the_server_counts(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WEIGH_EVERY", -60.0)
    token = make_token("shop", "admin")
    first = serve(auth="required").with_token(token)
    assert first.put(f"{Q}/messages/a", {"body": "x" * 5_000}).status == 201
    second = serve(auth="required", quotas={"shop": Quota(stored=5_010)}).with_token(token)
    assert second.put(f"{Q}/messages/b", {"body": 1}).status == 201  # it begins to count
    # The count that the put began may have it twice: in the store, and among what is under way.
    assert 5_005 <= second.get("/v1/usage").json["stored_bytes"] <= 5_007
    assert second.get("/v1/usage").json["stored_bytes"] == 5_005
    assert second.put(f"{Q}/messages/c", {"body": 1234567}).status == 507


@pytest.mark.parametrize("batch", [False, True])
def test_results_are_remembered_while_there_is_room(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    """An ack is never refused; without room for its result, it is done without one."""
    monkeypatch.setattr(module, "RECOUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    server = serve(auth="required", quotas={"shop": Quota(stored=20_000)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.send("PATCH", Q, {"result_ttl": "1d"}).status == 200
    result = "r" * 5_000
    packed = base64.b64encode(json.dumps(result).encode()).decode()
    for number in range(6):
        assert shop.put(f"{Q}/messages/m{number}", {"body": 1}).status == 201
        (held,) = shop.post(f"{Q}/claim", {}).json["messages"]
        if batch:
            token, _, secret = held["token"].partition(".")
            lease = [held["id"], int(token), secret]
            ack = {"command": "ack", "queue": "orders", "leases": [lease], "results": [packed]}
            assert shop.post("/v1/batch", {"commands": [ack]}).status == 200
        else:
            done = {"id": held["id"], "token": held["token"], "result": result}
            assert shop.post(f"{Q}/ack", {"leases": [done]}).status == 200
    answers = [shop.get(f"{Q}/messages/m{number}/result").json for number in range(6)]
    assert [answer.get("result") for answer in answers] == [result] * 3 + [None] * 3
    ends = [shop.get(f"{Q}/messages/m{number}/history").json["ends"] for number in range(6)]
    assert [end["how"] for (end,) in ends] == ["acked"] * 6
    assert shop.get("/v1/usage").json["stored_bytes"] < 20_000


def test_reasons_are_cut_to_a_line_without_room(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else retries of one message would fill the store: each may leave 8 KiB."""
    monkeypatch.setattr(module, "RECOUNT_EVERY", 0.0)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    server = serve(auth="required", quotas={"shop": Quota(stored=20_000)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.put(f"{Q}/messages/m", {"body": 1, "attempts": 100}).status == 201
    for _ in range(12):
        (held,) = shop.post(f"{Q}/claim", {}).json["messages"]
        lease = {"id": held["id"], "token": held["token"]}
        reason = "the first line\n" + "x" * 8_000
        assert shop.post(f"{Q}/retry", {"leases": [lease], "reason": reason}).status == 200
    failures = shop.get(f"{Q}/messages/m").json["failures"]
    reasons = [failure["reason"] for failure in failures]
    assert len(reasons) == 12
    assert reasons[0].startswith("the first line\nxxx")
    assert reasons[-1] == "the first line"
    assert shop.get("/v1/usage").json["stored_bytes"] < 20_000


def test_what_a_batch_settles_is_counted_once_for_all(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is read and written under a lock of all processes; and a release leaves nothing."""
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "admin"))
    leases = []
    for _ in range(3):
        assert shop.post(f"{Q}/messages", {"body": 1}).status == 201
        (one,) = shop.post(f"{Q}/claim", {}).json["messages"]
        number, _, secret = one["token"].partition(".")
        leases.append([one["id"], int(number), secret])
    more: list[dict[str, Any]] = [
        {"command": "ack", "results": ["MQ=="]},
        {"command": "bury", "reason": "no"},
        {"command": "retry", "release": True},
    ]
    commands = [
        {"queue": "orders", "leases": [lease], **one}
        for lease, one in zip(leases, more, strict=True)
    ]
    real, before = QuotaUsage.of, []

    @contextmanager
    def of(self: QuotaUsage, namespace: str | None) -> Iterator[NamespaceUsage]:
        with real(self, namespace) as use:
            before.append(use.stored.added)
            yield use

    monkeypatch.setattr(QuotaUsage, "of", of)
    for _ in range(2):  # the second time their leases are over, which only the store knows
        assert shop.post("/v1/batch", {"commands": commands}).status == 200
    first, second = before
    assert second - first == 2 * HISTORY_RECORD + 1 + 2


def test_a_namespace_has_so_many_queues(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=2)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.post("/v1/queues/a/messages", {"body": 1}).status == 201
    assert shop.post("/v1/batch", batch_of()).status == 200  # the queue orders
    full = shop.post("/v1/queues/b/messages", {"body": 1})
    assert (full.status, full.problem["field"]) == (507, "queue")
    assert "may have 2 queues and has 2" in full.problem["detail"]
    put = {"command": "put", "queue": "bide:workers", "items": [{"id": "m", "data": "MQ=="}]}
    assert shop.post("/v1/batch", {"commands": [put]}).status == 200  # a worker's heartbeat
    assert shop.post(f"{Q}/messages", {"body": 1}).status == 201
    assert shop.post("/v1/queues/a/purge", {"state": "ready"}).status == 200
    assert shop.send("DELETE", "/v1/queues/a").status == 204
    assert shop.post("/v1/queues/b/messages", {"body": 1}).status == 201
    assert shop.get("/v1/usage").json["queues"] == 2
    mail = server.with_token(make_token("mail", "admin"))
    assert mail.post("/v1/queues/b/messages", {"body": 1}).status == 201


def test_requests_and_answers_of_a_namespace_have_a_rate(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_BYTES", 1)
    server = serve(auth="required", quotas={"shop": Quota(byte_rate=0.5)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.post(f"{Q}/messages", {"body": "x" * 1_000}).status == 201
    refused = shop.get(f"{Q}/messages/a")
    assert (refused.status, refused.problem["title"]) == (429, "Rate limit exceeded")
    assert 1_900 <= int(refused.headers["retry-after"]) <= 2_400
    assert "may take 0.5 bytes a second" in refused.problem["detail"]
    other = server.with_token(make_token("mail", "admin"))
    assert other.post(f"{Q}/messages", {"body": 1}).status == 201
    assert shop.get("/healthz").status == 200


def test_what_anybody_may_ask_for_counts_for_nobody(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_BYTES", 1)
    server = serve(auth="required", quotas={"*": Quota(byte_rate=50_000)})
    for path in ("/docs", "/openapi.json", "/docs", "/openapi.json"):
        assert len(server.get(path).data) > 50_000
    whole = server.with_token(make_token(None, "read"))
    assert whole.get("/v1/queues").status == 200


def test_retry_after_is_long_enough(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(rate=1 / 10.45)})
    shop = server.with_token(make_token("shop", "produce"))
    assert shop.post(f"{Q}/messages", {"body": 1}).status == 201
    refused = shop.post(f"{Q}/messages", {"body": 1})
    assert (refused.status, refused.headers["retry-after"]) == (429, "11")


def test_what_is_told_after_the_end_counts_nowhere() -> None:
    usage, settings = SharedState(), Settings(store="memory://ended")
    lane = open_lane(settings.store)
    admission = Admission(Settings(auth="required"), Tokens(lane), SYSTEM_CLOCK)
    quotas = module.Quotas(settings, lane, SlowReads(lane), usage, admission)
    quotas.carried("shop", 1 << 20)
    usage.close()
    quotas.carried("shop", 1 << 30)  # a request that was broken off
    quotas.may_carry("shop")
    close_lane(lane)


def test_a_namespace_has_its_whole_allowance_on_a_machine_that_has_just_started(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_BYTES", 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    server = serve(auth="required", quotas={"shop": Quota(rate=0.01, byte_rate=100_000)})
    shop = server.with_token(make_token("shop", "produce"))
    assert shop.post(f"{Q}/messages", {"body": 1}).status == 201
    refused = shop.post(f"{Q}/messages", {"body": 1})
    assert (refused.status, refused.headers["retry-after"]) == (429, "100")
    assert "may put 0.01 messages a second" in refused.problem["detail"]


def test_nobody_is_told_to_try_again_too_early(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    server = serve(auth="required", quotas={"shop": Quota(rate=1)})
    shop = server.with_token(make_token("shop", "produce"))
    assert shop.post(f"{Q}/messages", {"body": 1}).status == 201
    for elapsed, wait in ((0.88, "0.2"), (0.97, "0.1")):
        now = elapsed
        refused = shop.post(f"{Q}/messages", {"body": 1})
        assert refused.problem["detail"].endswith(f"try again in {wait} s")


AT_ONCE = 40


def at_once(client: Client, method: str, path: str, content: Any) -> Counter[int]:
    """Send requests for a path with a number in it at the same time; count their statuses."""
    data, headers = json.dumps(content).encode(), {"authorization": f"Bearer {client.token}"}
    with ExitStack() as stack:
        address = "127.0.0.1", client.port
        ends = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(AT_ONCE)]
        for number, end in enumerate(ends):
            end.sendall(request(method, path.format(number), data, **headers))
        return Counter(status_of(end.recv(1 << 16)) for end in ends)


def test_new_queues_that_are_put_to_at_once(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=3)})
    shop = server.with_token(make_token("shop", "admin"))
    for start in "ab":
        path = f"/v1/queues/{start}{{}}/messages/m"
        told = at_once(shop, "PUT", path, {"body": 1})
        assert told == ({201: 3, 507: AT_ONCE - 3} if start == "a" else {507: AT_ONCE})
    assert len(shop.get("/v1/queues").json["queues"]) == 3


def test_queues_that_were_deleted_or_refused_leave_their_room_at_once(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=1, max_body=100)})
    shop = server.with_token(make_token("shop", "admin"))
    large = shop.put("/v1/queues/a/messages/m", {"body": "x" * 200})
    assert large.problem["type"].endswith("too-large")
    assert shop.put("/v1/queues/b/messages/m", {"body": 1}).status == 201
    assert shop.put("/v1/queues/c/messages/m", {"body": 1}).status == 507
    shop.send("DELETE", "/v1/queues/b/messages/m")
    assert shop.send("DELETE", "/v1/queues/b").status == 204
    assert shop.put("/v1/queues/c/messages/m", {"body": 1}).status == 201


def test_large_answers_that_are_asked_for_at_once_do_not_share_an_allowance(
    serve: Serve, make_token: Any
) -> None:
    # All requests fit into the allowance. The first answer uses it up for 20 seconds.
    server = serve(auth="required", quotas={"shop": Quota(byte_rate=40_000)})
    whole = server.with_token(make_token(None, "admin"))
    path = "/v1/queues/shop%2Fq/messages/m"
    assert whole.put(path, {"body": "x" * 900_000, "delay": "1d"}).status == 201
    shop = server.with_token(make_token("shop", "admin"))
    statuses = at_once(shop, "GET", "/v1/queues/q/messages/m", None)
    assert statuses == {200: 1, 429: AT_ONCE - 1}


def test_bytes_of_other_processes_count_once_they_are_settled() -> None:
    settings = Settings(quotas={"shop": Quota(byte_rate=40_000)})
    lane, files = open_lane("memory://bytes"), make_files()
    states = SharedState(files), SharedState([os.dup(file) for file in files])
    here, there = (Quotas(settings, lane, SlowReads(lane), state) for state in states)
    there.carried("shop", 900_000)
    here.may_carry("shop")  # it does not ask the other process for each request
    here.settle("shop")
    with pytest.raises(Problem, match=r"40,000 bytes a second; try again in \d\d\.\d s"):
        here.may_carry("shop")
    for state in states:
        state.close()
    close_lane(lane)


def test_a_namespace_that_is_full_holds_up_no_other() -> None:
    settings = Settings(quotas={"shop": Quota(queues=0), "inn": Quota(queues=1)})
    lane, usage = open_lane("memory://full"), SharedState()
    quotas = Quotas(settings, lane, SlowReads(lane), usage)
    served: list[str] = []

    async def put(queue: str) -> None:
        caller = Caller(queue.partition("/")[0], frozenset(["put"]))
        with suppress(Problem):
            await quotas.admit(caller, [Put(queue, [Item("m", b"1")])])
        served.append(queue)

    async def story() -> None:
        await asyncio.gather(*(put(f"shop/{n}") for n in range(AT_ONCE)), put("inn/a"))

    asyncio.run(story())
    assert served.index("inn/a") < AT_ONCE / 2
    usage.close()
    close_lane(lane)


def test_subscriptions_that_are_made_at_once(serve: Serve, make_token: Any) -> None:
    quota = Quota(subscriptions=3, push_concurrency=20)
    server = serve(auth="required", push=False, quotas={"shop": quota})
    shop = server.with_token(make_token("shop", "admin"))
    given = {"queue": "orders", "url": "https://shop.example/hook", "concurrency": 1}
    told = at_once(shop, "PUT", "/v1/subscriptions/s{}", given)
    assert told == {201: 3, 507: AT_ONCE - 3}
    names = [one["name"] for one in shop.get("/v1/subscriptions").json["subscriptions"]]
    for name in names:
        assert shop.send("PATCH", f"/v1/subscriptions/{name}", {"concurrency": 6}).status == 200
    assert shop.send("PATCH", f"/v1/subscriptions/{names[0]}", {"concurrency": 9}).status == 507


def test_subscriptions_of_a_namespace_wait_for_none_of_another(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", push=False)
    inn = server.with_token(make_token("inn", "admin"))
    columns = server.app.service.shared.columns
    held = columns.hold("shop")  # as a request of it does
    given = {"queue": "orders", "url": "https://inn.example/hook"}
    assert inn.put("/v1/subscriptions/s", given).status == 201
    columns.release(held)


def test_settings_make_no_queues_beyond_the_quota(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=1)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.send("PATCH", Q, {"keep": "1h"}).status == 200
    for verb in ("pause", "resume"):
        full = shop.post(f"/v1/queues/more/{verb}", {})
        assert (full.status, full.problem["field"]) == (507, "queue")
        assert shop.post(f"{Q}/{verb}", {}).status == 200
    assert shop.send("PATCH", "/v1/queues/more", {"limit": 1}).status == 507
    batch = {"commands": [{"command": "configure", "queue": "more", "paused": True}]}
    assert shop.post("/v1/batch", batch).status == 507
    assert shop.get("/v1/queues").json["queues"] == ["orders"]


def test_what_is_noted_of_changes_needs_room(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(stored=30_000)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.get("/v1/usage").json["stored_bytes"] == 0  # counted once, and added to from now on
    for id in "abcde":
        body = {"body": "x" * 2_000, "group": "g", "delay": "1h"}
        assert shop.put(f"{Q}/messages/{id}", body).status == 201
    moves = [
        shop.send("PATCH", f"{Q}/messages?group=g&undo=true", {"delay": "2h"}) for _ in range(4)
    ]
    assert [one.status for one in moves] == [200, 200, 507, 507]
    assert "may take 30,000 bytes" in moves[-1].problem["detail"]
    assert shop.get("/v1/usage").json["queues"] == 1
    undo = {"undo": moves[0].json["undo"]}
    assert shop.post(f"{Q}/undo", undo).json["taken"] == 5  # moved again since
    # What makes room is never refused, and a change without notes needs none.
    assert shop.send("PATCH", f"{Q}/messages?group=g", {"delay": "3h"}).status == 200
    assert shop.send("DELETE", f"{Q}/messages?group=g&undo=true").json["count"] == 5
