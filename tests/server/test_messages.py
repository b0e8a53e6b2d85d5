"""What can be asked about messages, as curl would ask it."""

import base64
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest

from bide.model.errors import StoreUnavailable
from bide.model.options import OPTIONS
from bide.server import wire
from tests.server.client import Client, Q
from tests.server.conftest import Serve

ONE = f"{Q}/messages/order-42"


def test_a_put_is_idempotent(client: Client) -> None:
    first = client.put(ONE, {"body": {"order": 42}, "delay": "30m"})
    assert (first.status, first.json["state"], first.json["done"]) == (201, "delayed", True)
    again = client.put(ONE, {"body": {"order": 43}})
    assert (again.status, again.json["done"]) == (200, False)
    found = client.get(ONE)
    assert found.json["body"] == {"order": 42}
    assert found.headers["etag"] == first.headers["etag"]
    assert "etag" not in again.headers  # it would be that of a message which was not looked at


def test_a_put_replaces_or_refuses_when_told_to(client: Client) -> None:
    client.put(ONE, {"body": 1, "delay": 60})
    assert client.put(f"{ONE}?on_conflict=replace", {"body": 2, "delay": 60}).status == 201
    assert client.get(ONE).json["body"] == 2
    assert client.put(f"{ONE}?on_conflict=raise", {"body": 3}).problem["error"] == "AlreadyExists"
    lost = client.put(ONE, {"body": 3}, if_none_match="*")
    assert (lost.status, lost.problem["outcomes"][0]["id"]) == (412, "order-42")


def test_puts_with_latest_debounce_and_follow_what_is_leased(client: Client) -> None:
    where = f"{ONE}?on_conflict=replace&latest=10"
    first = client.put(where, {"body": 1, "delay": 60})
    created = client.get(ONE).json["created"]
    assert first.json["due"] == created + 10_000
    assert client.get(ONE).headers["etag"] == first.headers["etag"]
    client.send("PATCH", ONE, {"delay": 0})
    (held,) = client.post(f"{Q}/claim", {}).json["messages"]
    stored = client.put(where, {"body": {"new": 2}, "delay": 60})
    assert (stored.status, stored.json["state"], stored.json["done"]) == (201, "leased", True)
    assert "etag" not in stored.headers
    found = client.get(ONE).json
    assert (found["body"], found["successor"]) == (1, stored.json["successor"])
    lease = {"id": held["id"], "token": held["token"]}
    acked = client.post(f"{Q}/ack", {"leases": [lease]}).json["outcomes"]
    assert acked == [
        {"id": "order-42", "done": True, "state": "delayed", "due": found["successor"]}
    ]
    assert client.get(ONE).json["body"] == {"new": 2}
    for wrong in ("latest=10", "on_conflict=replace&latest=soon"):
        assert client.put(f"{ONE}?{wrong}", {"body": 1, "delay": 60}).problem["field"] == "latest"
    assert client.post(f"{Q}/messages", {"body": 1, "delay": 1, "latest": 5}).status == 400


def test_an_id_is_made_up(client: Client) -> None:
    made = client.post(f"{Q}/messages", {"body": None, "priority": 3, "group": "g"})
    assert made.status == 201
    found = client.get(made.headers["location"]).json
    assert (found["id"], found["body"], found["priority"]) == (made.json["id"], None, 3)


@pytest.mark.parametrize("id", ["a/b", "ä ö?#", "%2F", "many", "x/body", ".", "a%b"])
def test_any_id_goes_into_a_path(client: Client, id: str) -> None:
    made = client.post(f"{Q}/messages", {"body": id, "id": id})
    where = made.headers["location"]
    assert client.get(where).json["id"] == id
    assert client.get(f"{where}/body").json == id
    assert client.send("DELETE", where).status == 200


@pytest.mark.parametrize("more", ["", "; charset=utf-8"])
def test_a_form_is_refused_not_stored(client: Client, more: str) -> None:
    kind = "application/x-www-form-urlencoded"
    for method, path in (("POST", f"{Q}/messages"), ("PUT", ONE)):
        data = b'{"body": "hello", "delay": "1h"}'  # what curl -d makes of it
        refused = client.send(method, path, data=data, content_type=kind + more)
        assert refused.status == 415
        assert "content-type: application/json (curl --json)" in refused.problem["detail"]
    assert client.get("/v1/queues").json == {"queues": []}
    form = base64.b64encode(b"a=1&b=2").decode()
    assert client.put(ONE, {"bytes": form, "headers": {"content-type": kind}}).status == 201
    assert client.get(f"{ONE}/body").headers["content-type"] == kind


def test_bytes_keep_their_content_type(client: Client) -> None:
    data = bytes(range(256))
    path = f"{ONE}?delay=10&priority=7&group=pictures&attempts=2&expires=1h"
    assert client.send("PUT", path, data=data, content_type="image/png").status == 201
    found = client.get(ONE).json
    assert base64.b64decode(found["bytes"]) == data
    assert (found["priority"], found["group"], found["attempts"]) == (7, "pictures", 2)
    assert (found["headers"], found["expires"]) == ({"content-type": "image/png"}, 3_600_000)
    body = client.get(f"{ONE}/body")
    assert (body.data, body.headers["content-type"]) == (data, "image/png")
    assert body.headers["x-content-type-options"] == "nosniff"


def test_many_are_put_at_once_or_not_at_all(client: Client) -> None:
    given: list[Any] = [{"body": n, "id": f"m{n}"} for n in range(3)]
    given.append({"bytes": base64.b64encode(b"raw").decode()})
    outcomes = client.post(f"{Q}/put", {"messages": given}).json["outcomes"]
    assert [outcome["done"] for outcome in outcomes] == [True] * 4
    bad = client.post(
        f"{Q}/put", {"messages": [{"body": 1, "id": "new"}, {"body": 1, "delay": "x"}]}
    )
    assert (bad.status, bad.problem["field"]) == (400, "messages[1]")
    assert client.get(f"{Q}/messages/new").status == 404


def test_an_edit_that_somebody_else_has_overtaken_is_refused(client: Client) -> None:
    tag = client.put(ONE, {"body": 1, "delay": "1h"}).headers["etag"]
    assert client.get(ONE).headers["etag"] == tag
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        assert client.get(ONE, if_none_match=known).status == 304
        assert client.get(f"{ONE}/body", if_none_match=known).status == 304
    moved = client.send("PATCH", ONE, {"delay": "2h"}, if_match=f'"x", {tag}')
    assert (moved.status, moved.json["done"]) == (200, True)
    assert client.get(ONE).headers["etag"] == moved.headers["etag"]
    for method, content in (("PATCH", {"delay": "3h"}), ("DELETE", None)):
        late = client.send(method, ONE, content, if_match=tag)
        assert (late.status, late.headers["etag"]) == (412, moved.headers["etag"])
        assert "look again" in late.problem["detail"]
    for tag in ('"x"', "x", '"', f"W/{moved.headers['etag']}"):
        assert client.send("DELETE", ONE, if_match=tag).status == 412
    assert client.send("DELETE", ONE, if_match=moved.headers["etag"]).status == 200
    assert client.send("DELETE", ONE, if_match=moved.headers["etag"]).status == 412
    assert client.send("DELETE", ONE, if_match="*").status == 404


def test_of_two_that_edit_a_message_one_is_too_late(client: Client) -> None:
    first = {"body": "first", "at": 2_000_000_000}
    tag = client.put(ONE, first).headers["etag"]
    mine = client.put(ONE, {**first, "body": "mine"}, if_match=tag)
    assert (mine.status, mine.json["done"], mine.json["due"]) == (200, True, 2_000_000_000_000)
    # The moment is the same, but the body is another's now.
    late = client.put(ONE, {**first, "body": "theirs"}, if_match=tag)
    assert (late.status, late.headers["etag"]) == (412, mine.headers["etag"])
    for verb, content in (("PATCH", {"delay": 5}), ("DELETE", None)):
        assert client.send(verb, ONE, content, if_match=tag).status == 412
    assert client.get(ONE, if_none_match=tag).json["body"] == "mine"
    again = client.put(ONE, {**first, "body": "theirs"}, if_match=client.get(ONE).headers["etag"])
    assert (again.status, client.get(ONE).json["body"]) == (200, "theirs")
    assert client.get(ONE).headers["etag"] == again.headers["etag"]
    assert client.get(Q).json["flow"]["put"] == 1


def test_an_edit_stores_nothing_new_and_says_who_holds_it(client: Client) -> None:
    assert client.put(ONE, {"body": 1}, if_match='"0123456789abcdef"').status == 412
    assert client.put(ONE, {"body": 1}, if_match="*").status == 412
    assert client.get(ONE).status == 404
    tag = client.put(ONE, {"body": 1}).headers["etag"]
    assert client.put(ONE, {"body": 2, "delay": 9}, if_match="*").status == 200
    assert client.put(ONE, {"body": 1}, if_match=tag, if_none_match="*").status == 400
    wrong = client.put(f"{ONE}?on_conflict=raise", {"body": 1}, if_match=tag)
    assert (wrong.status, wrong.problem["field"]) == (400, "if-match")
    client.send("PATCH", ONE, {"delay": 0})
    client.post(f"{Q}/claim", {"holder": "web1"})
    held = client.put(ONE, {"body": 3}, if_match=client.get(ONE).headers["etag"])
    assert (held.status, "held by web1" in held.problem["detail"]) == (409, True)


def test_an_if_match_that_is_no_etag_matches_nothing(client: Client) -> None:
    tag = client.put(ONE, {"body": 1}, if_none_match="*").headers["etag"]
    for wrong in (tag.strip('"'), f"W/{tag}"):
        refused = client.put(ONE, {"body": 2}, if_match=wrong)
        assert refused.status == 412
        assert "if-match is not its etag" in refused.problem["detail"]
    assert client.put(ONE, {"body": 2}, if_match=tag).status == 200


def test_of_many_that_edit_at_once_each_sees_the_one_before(client: Client, serve: Serve) -> None:
    client.put(ONE, {"body": [], "at": 2_000_000_000})
    clients = [client, serve()]

    def edit(editor: Client, number: int) -> None:
        with Client(editor.port, editor.app) as own:
            while True:
                seen = own.get(ONE)
                body = {"body": [*seen.json["body"], number], "at": 2_000_000_000}
                if own.put(ONE, body, if_match=seen.headers["etag"]).status == 200:
                    return

    threads = [threading.Thread(target=edit, args=(clients[n % 2], n)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(client.get(ONE).json["body"]) == list(range(12))


def test_cancel_says_when_it_is_too_late(client: Client) -> None:
    assert client.send("DELETE", ONE).status == 404
    client.put(ONE, {"body": 1})
    client.post(f"{Q}/claim", {"holder": "web1"})
    late = client.send("DELETE", ONE)
    assert late.status == 409
    assert "held by web1" in late.problem["detail"]


def test_a_list_has_filters_and_pages(client: Client) -> None:
    messages = [
        {"body": n, "id": f"m{n}", "at": 2_000_000_000 + n, "group": f"g{n % 2}"} for n in range(9)
    ]
    client.post(f"{Q}/put", {"messages": messages})
    seen, cursor = [], ""
    while True:
        page = client.get(f"{Q}/messages?state=delayed&limit=4{cursor}").json
        seen += [message["id"] for message in page["messages"]]
        if "cursor" not in page:
            break
        cursor = f"&cursor={page['cursor']}"
    assert seen == [f"m{n}" for n in range(9)]
    path = f"{Q}/messages?group=g1&after=2000000003&before=2033-05-18T03:33:27Z"
    assert [message["id"] for message in client.get(path).json["messages"]] == ["m3", "m5"]


def test_a_group_and_a_range_are_taken_back(client: Client) -> None:
    messages = [{"body": n, "at": 2_000_000_000 + n, "group": f"g{n % 2}"} for n in range(9)]
    client.post(f"{Q}/put", {"messages": messages})
    assert client.send("DELETE", f"{Q}/messages?group=g1&dry_run=true").json["count"] == 4
    assert client.send("DELETE", f"{Q}/messages?group=g1").json == {"count": 4, "more": False}
    assert client.send("DELETE", f"{Q}/messages?before=2000000003").json["count"] == 2
    assert client.send("DELETE", f"{Q}/messages").status == 400
    assert client.get(Q).json["sizes"]["delayed"] == 3


def test_claim_and_settle(client: Client) -> None:
    client.post(f"{Q}/put", {"messages": [{"body": n, "id": f"m{n}"} for n in range(6)]})
    claimed = client.post(f"{Q}/claim", {"count": 5, "lease": "1m", "holder": "w"}).json
    leases = [{"id": m["id"], "token": m["token"]} for m in claimed["messages"]]
    assert [message["body"] for message in claimed["messages"]] == [0, 1, 2, 3, 4]
    for verb, lease, more in (
        ("ack", leases[0], {}),
        ("retry", leases[1], {"delay": "1h", "reason": "later"}),
        ("bury", leases[2], {"reason": "never"}),
        ("release", leases[3], {}),
        ("extend", leases[4], {"lease": "5m"}),
    ):
        done = client.post(f"{Q}/{verb}", {"leases": [lease], **more})
        assert (done.status, done.json["outcomes"][0]["done"]) == (200, True), verb
    counts = client.get(Q).json
    assert counts["sizes"] == {"delayed": 1, "ready": 2, "leased": 1, "dead": 1}
    assert counts["flow"]["acked"] == 1
    late = client.post(f"{Q}/ack", {"leases": leases[:1]})
    assert (late.status, late.problem["error"]) == (409, "LeaseLost")
    assert late.problem["outcomes"][0]["id"] == "m0"
    some = client.post(f"{Q}/ack", {"leases": [leases[0], leases[4]]})
    assert [outcome["done"] for outcome in some.json["outcomes"]] == [False, True]


def test_a_claim_waits_until_a_message_is_due(client: Client) -> None:
    began = time.monotonic()
    client.put(ONE, {"body": 1, "delay": "300ms"})
    claimed = client.post(f"{Q}/claim", {"wait": "10s"}).json
    assert [message["id"] for message in claimed["messages"]] == ["order-42"]
    assert time.monotonic() - began > 0.25
    nothing = client.post(f"{Q}/claim", {"wait": 0.05}).json
    assert nothing["messages"] == []


def test_dead_letters_are_listed_revived_and_purged(client: Client) -> None:
    client.post(f"{Q}/put", {"messages": [{"body": n, "id": f"m{n}"} for n in range(3)]})
    leases = [
        {"id": m["id"], "token": m["token"]}
        for m in client.post(f"{Q}/claim", {"count": 3}).json["messages"]
    ]
    client.post(f"{Q}/bury", {"leases": leases, "reason": "no such customer"})
    dead = client.get(f"{Q}/dead?limit=2").json
    failure = dead["messages"][0]["failures"][0]
    assert failure["reason"] == "no such customer"
    assert failure["started"] <= failure["moment"]
    assert len(client.get(f"{Q}/dead?cursor={dead['cursor']}").json["messages"]) == 1
    assert client.post(f"{Q}/revive", {"ids": ["m0"]}).json["outcomes"][0]["state"] == "ready"
    assert client.post(f"{Q}/purge", {"state": "dead"}).json["count"] == 2
    assert client.post(f"{Q}/revive").json["outcomes"] == []


def test_queues_that_bide_keeps_for_itself_are_listed_if_asked_for(client: Client) -> None:
    for queue in ("orders", "bide:move", "shop/bide:move"):
        client.post(f"/v1/queues/{quote(queue, '')}/messages", {"body": 1})
    assert client.get("/v1/queues").json == {"queues": ["orders"]}
    assert client.get("/v1/queues?prefix=bide").json == {"queues": []}
    assert client.get("/v1/queues?prefix=bide:").json == {"queues": ["bide:move"]}
    told = client.get("/metrics").data.decode()
    assert 'queue="orders"' in told
    assert "bide:move" not in told


def test_queues_are_counted_paused_forecast_and_audited(client: Client) -> None:
    for queue in ("orders", "other"):
        client.post(f"/v1/queues/{queue}/messages", {"body": 1, "delay": 90})
    assert client.get("/v1/queues").json == {"queues": ["orders", "other"]}
    assert client.get("/v1/queues?prefix=ot").json == {"queues": ["other"]}
    forecast = client.get(f"{Q}/forecast?bucket=1m&horizon=5m").json
    assert (forecast["counts"], forecast["bucket"]) == ([0, 1, 0, 0, 0], 60_000)
    assert client.post(f"{Q}/pause").json["paused"]
    assert client.get(Q).json["paused"]
    assert not client.post(f"{Q}/resume").json["paused"]
    kept = client.send("PATCH", Q, {"paused": True, "keep": "1h"}).json
    assert kept == {
        "paused": True,
        "keep": 3_600_000,
        "history": 0,
        "result_ttl": 0,
        "limit": 0,
        "rate": None,
        "group_limit": 0,
        "group_rate": None,
    }
    audit = client.get(f"{Q}/audit").json
    assert (audit["balanced"], audit["problems"]) == (True, [])


def test_a_list_by_due_time_has_pages_in_every_state(client: Client) -> None:
    for number in range(4):
        client.post(f"{Q}/messages", {"body": number, "at": 1_000_000_000 + number})
    client.post(f"{Q}/claim", {"count": 2})
    seen, cursor = [], ""
    while True:
        page = client.get(f"{Q}/messages?before=1000005000&limit=1{cursor}").json
        seen += [message["body"] for message in page["messages"]]
        if "cursor" not in page:
            break
        cursor = f"&cursor={page['cursor']}"
    assert sorted(seen) == [0, 1, 2, 3]


def test_an_empty_queue_is_deleted(client: Client) -> None:
    client.put(ONE, {"body": 1})
    refused = client.send("DELETE", Q)
    assert (refused.status, refused.json["error"]) == (409, "NotEmpty")
    assert "is not empty, so it was not deleted: 1 ready." in refused.json["detail"]
    client.send("DELETE", ONE)
    assert client.send("DELETE", Q).status == 204
    assert client.get("/v1/queues").json == {"queues": []}
    assert client.send("DELETE", Q).status == 404


def test_the_service_tells_how_it_is(client: Client) -> None:
    client.post(f"{Q}/messages", {"body": 1})
    assert client.get("/healthz").json == {"status": "ok"}
    assert client.get("/readyz").json == {"status": "ready"}
    assert client.get("/v1").json["capabilities"]["durable"]


def test_a_head_is_a_get_without_its_body(client: Client) -> None:
    client.put(ONE, {"body": 1})
    head = client.send("HEAD", ONE)
    assert (head.status, head.data) == (200, b"")
    assert head.headers["etag"]


def test_fields_of_a_message_come_in_their_order_and_none_is_left_out() -> None:
    fields = wire.MessageOut.__struct_fields__
    head = ("id", "queue", "state", "due", "priority", "attempt", "attempts", "group")
    assert fields[: len(head)] == head
    assert set(OPTIONS) <= set(fields)


def test_a_message_is_explained(client: Client) -> None:
    client.put(ONE, {"body": 1})
    client.post(f"{Q}/pause", {})
    told = client.get(f"{ONE}/explanation").json
    assert (told["id"], told["queue"]) == ("order-42", "orders")
    assert told["reasons"] == ["paused", "no-worker"]
    assert "the queue has been paused" in told["sentence"]
    assert told["facts"]["state"] == "ready"
    assert "暂停" in client.get(f"{ONE}/explanation?language=zh").json["sentence"]
    assert client.get(f"{Q}/messages/x/explanation").status == 404
    assert client.get(f"{ONE}/explanation?language=fr").status == 400


def test_a_server_knows_who_waits_at_it(client: Client) -> None:
    client.put(f"{Q}/messages/a", {"body": 1})
    client.post(f"{Q}/claim", {"holder": "curl:1"})
    client.put(ONE, {"body": 1})
    command = {"command": "explain", "queue": "orders", "id": "order-42"}
    (reply,) = client.post("/v1/batch", {"commands": [command]}).json["replies"]
    assert reply["workers"] == [{"holder": "curl:1"}]
    assert client.get(f"{ONE}/explanation").json["reasons"] == ["next"]


def test_a_reply_that_cannot_be_completed_is_no_failure_of_its_batch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: object) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(client.app.service, "explained", away)
    put = {"command": "put", "queue": "orders", "items": [{"id": "a", "data": "MQ=="}]}
    explain = {"command": "explain", "queue": "orders", "id": "a"}
    reply = client.post("/v1/batch", {"commands": [put, explain]})
    assert reply.status == 200
    done, failed = reply.json["replies"]
    assert done["outcomes"][0]["done"]
    assert failed == {"type": "failed", "error": "StoreUnavailable", "detail": "it is away"}
