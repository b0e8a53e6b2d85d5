"""History and results over HTTP."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import bide
from bide.lane import waiting_claims
from tests.server.client import Client, Q, Reply
from tests.server.conftest import Serve

ONE = f"{Q}/messages/order-42"


def settings(client: Client, **given: str) -> Any:
    return client.send("PATCH", Q, given).json


def claimed(client: Client) -> dict[str, Any]:
    (message,) = client.post(f"{Q}/claim", {"holder": "w1"}).json["messages"]
    return {"id": message["id"], "token": message["token"]}


def test_history_tells_how_messages_ended(client: Client) -> None:
    told = settings(client, history="7d", result_ttl="1h")
    assert told == {
        "paused": False,
        "keep": 0,
        "history": 604_800_000,
        "result_ttl": 3_600_000,
        "limit": 0,
        "rate": None,
        "group_limit": 0,
        "group_rate": None,
    }
    assert client.get(Q).json["history"] == 604_800_000
    client.put(ONE, {"body": 1})
    client.send("DELETE", ONE)
    client.put(ONE, {"body": 1})
    assert client.get(f"{ONE}/history").json["state"] == "ready"
    client.post(f"{Q}/ack", {"leases": [{**claimed(client), "result": {"total": 3}}]})
    found = client.get(f"{ONE}/history").json
    assert (found["id"], found["state"]) == ("order-42", None)
    acked, cancelled = found["ends"]
    assert (acked["how"], acked["by"], acked["result"]) == ("acked", "w1", {"total": 3})
    assert [attempt["outcome"] for attempt in acked["attempts"]] == ["acked"]
    assert (cancelled["how"], cancelled["by"]) == ("cancelled", "127.0.0.1")
    assert "result" not in cancelled
    assert client.get(f"{Q}/messages/b/history").problem["type"] == "/docs#problem-not-found"


def test_limits_are_set_and_told(client: Client) -> None:
    told = client.send("PATCH", Q, {"limit": 3, "group_rate": "100/m", "rate": 0.5}).json
    assert (told["limit"], told["rate"], told["group_rate"]) == (3, "30/m", "100/m")
    counts = client.get(Q).json
    assert (counts["limit"], counts["rate"], counts["group_rate"]) == (3, "30/m", "100/m")
    assert "group_limit" not in counts
    wrong = client.send("PATCH", Q, {"rate": "often"})
    assert wrong.status == 400
    assert "rate='often' is not a valid rate" in wrong.problem["detail"]
    assert client.send("PATCH", Q, {"limit": -1}).status == 400
    for number in range(4):
        client.put(f"{Q}/messages/m{number}", {"body": number})
    assert len(client.post(f"{Q}/claim", {"count": 4}).json["messages"]) == 1


def test_a_result_is_answered_once_the_message_has_ended(client: Client) -> None:
    settings(client, result_ttl="1h", history="1h")
    client.put(ONE, {"body": 1})
    early = client.get(f"{ONE}/result")
    assert (early.status, early.json) == (202, {"id": "order-42", "how": None, "state": "ready"})
    late = client.get(f"{ONE}/result?wait=10ms")
    assert (late.status, late.json["how"]) == (202, None)
    client.post(f"{Q}/bury", {"leases": [claimed(client)], "reason": "bad"})
    dead = client.get(f"{ONE}/result?wait=30s")
    assert (dead.status, dead.json) == (
        200,
        {"id": "order-42", "how": "dead", "by": "w1", "error": "bad"},
    )
    assert client.get(f"{Q}/messages/b/result").problem["type"] == "/docs#problem-not-found"


def test_a_waiting_result_is_answered_with_the_ack(client: Client) -> None:
    settings(client, result_ttl="1h")
    client.put(ONE, {"body": 1})
    lease = claimed(client)
    answers: list[Reply] = []
    other = Client(client.port, client.app)
    waits = threading.Thread(target=lambda: answers.append(other.get(f"{ONE}/result?wait=30s")))
    waits.start()
    client.post(f"{Q}/ack", {"leases": [{**lease, "result": [1]}]})
    waits.join()
    other.close()
    assert (answers[0].status, answers[0].json["result"]) == (200, [1])


def test_an_http_store_wakes_who_waits_for_a_result(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(client, result_ttl="1h")
    client.put(ONE, {"body": 1})
    lease = claimed(client)
    found: list[Any] = []
    with bide.Queue("orders", client.url) as orders:
        waits = threading.Thread(target=lambda: found.append(orders.result("order-42", wait=60)))
        waits.start()
        ready = threading.Event()
        while not client.app.service._watches:  # it has asked, and listens
            ready.wait(0.01)
        monkeypatch.setattr(waiting_claims, "LOOK_AGAIN", 1e6)  # so that hints alone wake
        client.post(f"{Q}/ack", {"leases": [{**lease, "result": [1]}]})
        waits.join()
    assert found == [[1]]


def test_a_result_that_is_no_json_or_too_large_is_refused(client: Client) -> None:
    settings(client, result_ttl="1h")
    client.put(ONE, {"body": 1})
    lease = claimed(client)
    large = client.post(f"{Q}/ack", {"leases": [{**lease, "result": "x" * 65_536}]})
    assert large.status == 400
    assert "result takes 65,538 bytes, the limit is 65,536" in large.json["detail"]
    assert client.post(f"{Q}/ack", {"leases": [{**lease, "result": None}]}).status == 200
    assert client.get(f"{ONE}/result").json == {
        "id": "order-42",
        "how": "acked",
        "by": "w1",
        "result": None,
    }


def test_results_are_for_those_who_may_see_bodies(
    serve: Serve, make_token: Callable[..., str]
) -> None:
    shop = make_token("shop", "admin", name="shop-api")
    client = serve()
    admin = client.with_token(shop)
    reader = client.with_token(make_token("shop", rights=["read"]))
    settings(admin, result_ttl="1h", history="1h")
    admin.put(ONE, {"body": 1})
    admin.post(f"{Q}/ack", {"leases": [{**claimed(admin), "result": "secret"}]})
    assert admin.get(f"{ONE}/result").json["result"] == "secret"
    assert reader.get(f"{ONE}/result").status == 403
    assert "result" not in reader.get(f"{ONE}/history").json["ends"][0]
    url = f"http://127.0.0.1:{client.port}"
    with bide.Queue("orders", url.replace("//", f"//{reader.token}@")) as orders:
        with pytest.raises(bide.AccessDenied, match="withholds the result"):
            orders.result("order-42")
    with bide.Queue("orders", url.replace("//", f"//{shop}@"), actor="ann") as orders:
        assert orders.result("order-42") == "secret"
        orders.put(1, id="b")
        orders.cancel("b")
        assert orders.history("b")[0].by == "ann via shop-api"
        assert orders.history("order-42")[0].by == "w1"
