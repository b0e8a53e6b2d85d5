"""What can be asked about messages, as curl would ask it: changes, searches and ends, too."""

import base64
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

import bide
from bide.lane import waiting_claims
from bide.model.errors import StoreUnavailable
from bide.model.options import OPTIONS, Option
from bide.server import wire
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve

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
    both = client.put(f"{ONE}?on_conflict=replace", {"body": 3}, if_none_match="*")
    assert (both.status, both.problem["field"]) == (400, "if-none-match")
    assert client.get(ONE).json["body"] == 2


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


def test_a_spread_is_a_time_of_the_id(client: Client) -> None:
    span = {"at": 4_000_000_000, "spread": "15m"}
    first = client.put(f"{Q}/messages/user-1", {"body": 1, **span})
    assert first.json["due"] == 4_000_000_698_765
    user = {"id": "user-2", "body": 2, **span}
    (second,) = client.post(f"{Q}/put", {"messages": [user]}).json["outcomes"]
    assert second["due"] == 4_000_000_763_486
    in_query = f"{Q}/messages/user-1?on_conflict=replace&at=4000000000&spread=15m"
    replaced = client.send("PUT", in_query, data=b"\x00", content_type="image/png")
    assert replaced.json["due"] == first.json["due"]
    assert client.put(ONE, {"body": 1, "spread": "soon"}).problem["field"] == "spread"


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
    own = set(client.get("/v1/queues?prefix=bide:").json["queues"])
    assert own - {"bide:zones"} == {"bide:move"}  # a server may look after local dates
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
        "paused_until": None,
        "keep": 3_600_000,
        "history": 0,
        "result_ttl": 0,
        "limit": 0,
        "rate": None,
        "group_limit": 0,
        "group_rate": None,
        "overdue": "",
    }
    audit = client.get(f"{Q}/audit").json
    assert (audit["balanced"], audit["problems"]) == (True, [])


def test_a_pause_ends_by_itself(client: Client) -> None:
    paused = client.post(f"{Q}/pause", {"until": 4_000_000_000}).json
    assert (paused["paused"], paused["paused_until"]) == (True, 4_000_000_000_000)
    assert client.get(Q).json["paused_until"] == 4_000_000_000_000
    sooner = client.post(f"{Q}/pause", {"for": "1h"}).json["paused_until"]
    assert sooner < 4_000_000_000_000
    assert client.get(Q).json["paused_until"] == sooner
    both = client.post(f"{Q}/pause", {"for": "1h", "until": 4_000_000_000})
    assert both.problem["field"] == "for"
    assert client.post(f"{Q}/pause").json["paused_until"] is None


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


FAR = 2_000_000_000


def test_patch_changes_what_is_named_and_nothing_else(client: Client) -> None:
    given = {"body": {"a": 1}, "at": FAR, "priority": 3, "group": "g", "headers": {"h": "v"}}
    client.put(ONE, {**given, "expires": "1h"})
    before = client.get(ONE).json
    for change, now_is in (
        ({"body": [2]}, {"body": [2]}),
        ({"priority": 9, "attempts": 2}, {"priority": 9, "attempts": 2}),
        ({"group": "h", "headers": {"x": "y"}}, {"group": "h", "headers": {"x": "y"}}),
        ({"at": FAR + 1, "expires": "2h"}, {"due": (FAR + 1) * 1_000, "expires": 7_200_000}),
    ):
        before |= now_is
        tag = client.get(ONE).headers["etag"]
        changed = client.send("PATCH", ONE, change, if_match=tag)
        assert (changed.status, changed.json["due"]) == (200, before["due"])
        found = client.get(ONE)
        assert (found.json, found.headers["etag"]) == (before, changed.headers["etag"])
    without = {"group": None, "headers": None, "expires": None}
    assert client.send("PATCH", ONE, without).status == 200
    assert client.get(ONE).json == {k: v for k, v in before.items() if k not in without}


def test_an_option_of_a_put_that_no_edit_changes_is_not_asked_of_patch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put(ONE, {"body": 1, "at": FAR})
    monkeypatch.setitem(OPTIONS, "cost", Option("cost", 0, "Of a put alone.", 0, 9))
    assert client.send("PATCH", ONE, {"priority": 9}).status == 200


def test_patch_replaces_a_body_by_bytes(client: Client) -> None:
    client.put(ONE, {"body": 1, "at": FAR})
    data = base64.b64encode(b"\xff").decode()
    assert client.send("PATCH", ONE, {"bytes": data}).status == 200
    assert client.get(ONE).json["bytes"] == data
    assert client.send("PATCH", ONE, {"body": None}).status == 200
    assert client.get(ONE).json["body"] is None


def test_the_etag_of_an_edit_after_a_retry(client: Client) -> None:
    client.put(ONE, {"body": 1, "expires": "1h"})
    (message,) = client.post(f"{Q}/claim", {}).json["messages"]
    lease = {"id": "order-42", "token": message["token"]}
    client.post(f"{Q}/retry", {"leases": [lease], "delay": "5m", "reason": "no"})
    for change in ({"priority": 1}, {"expires": "2h"}, {"body": 2}, {"delay": "1m"}):
        changed = client.send("PATCH", ONE, change, if_match=client.get(ONE).headers["etag"])
        assert client.get(ONE).headers["etag"] == changed.headers["etag"], change
    assert client.get(ONE).json["attempt"] == 1


def test_a_dead_letter_is_edited_but_has_no_due_time(client: Client) -> None:
    client.put(ONE, {"body": 1, "attempts": 1})
    (message,) = client.post(f"{Q}/claim", {}).json["messages"]
    client.post(f"{Q}/retry", {"leases": [{"id": "order-42", "token": message["token"]}]})
    assert client.send("PATCH", ONE, {"body": 2}).json["state"] == "dead"
    assert client.send("PATCH", ONE, {"delay": 5}).status == 409
    assert client.get(ONE).json["body"] == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, None),
        ({"body": 1, "bytes": ""}, "body"),
        ({"priority": 256}, "priority"),
        ({"attempts": 0}, "attempts"),
        ({"group": ""}, "group"),
        ({"headers": {"a": 1}}, "headers"),
        ({"delay": 1, "at": FAR}, None),
        ({"expires": 0}, None),
        ({"id": "b"}, "id"),
        ({"priority": None}, "priority"),
    ],
)
def test_what_cannot_be_is_refused(client: Client, change: Any, field: str | None) -> None:
    client.put(ONE, {"body": 1, "at": FAR})
    tag = client.get(ONE).headers["etag"]
    refused = client.send("PATCH", ONE, change)
    assert refused.status == 400, refused.data
    assert field is None or refused.problem["field"].startswith(field)
    assert client.get(ONE).headers["etag"] == tag


def test_an_edit_needs_the_right_to_change(serve: Serve, make_token: Any) -> None:
    writer = make_token(None, rights=["put", "change"], name="writer")
    reader = make_token(None, rights=["put", "read", "bodies"], name="reader")
    client = serve()
    mine, other = client.with_token(writer), client.with_token(reader)
    mine.put(ONE, {"body": 1, "at": FAR})
    assert mine.send("PATCH", ONE, {"body": 2}).status == 200
    assert other.send("PATCH", ONE, {"body": 3}).status == 403
    assert other.send("PATCH", f"{Q}/messages?group=g", {"delay": 1}).status == 403
    assert other.get(ONE).json["body"] == 2


def test_a_group_is_moved_part_by_part(client: Client) -> None:
    many = [{"body": n, "id": f"m{n}", "group": "g", "at": FAR} for n in range(5)]
    client.post(f"{Q}/put", {"messages": [*many, {"body": 9, "id": "x", "at": FAR}]})
    client.put(f"{Q}/messages/now", {"body": 1, "group": "g"})
    client.post(f"{Q}/claim", {})
    count, cursor, parts = 0, "", 0
    while True:
        path = f"{Q}/messages?group=g&limit=2" + (f"&cursor={cursor}" if cursor else "")
        moved = client.send("PATCH", path, {"at": FAR + 60}).json
        count, parts = count + moved["count"], parts + 1
        cursor = moved.get("cursor", "")
        if not cursor:
            break
    assert (count, parts >= 3) == (5, True)
    dues = {m["id"]: m["due"] for m in client.get(f"{Q}/messages?state=delayed").json["messages"]}
    assert dues == {"x": FAR * 1_000} | {f"m{n}": (FAR + 60) * 1_000 for n in range(5)}
    assert client.send("PATCH", f"{Q}/messages", {"delay": 1}).status == 400
    assert client.send("PATCH", f"{Q}/messages?group=g", {}).status == 400


def ids(client: Client, query: str) -> list[tuple[str, str]]:
    """Return what a search finds, two messages a page."""
    found: list[tuple[str, str]] = []
    cursor = ""
    while True:
        page = client.get(f"/v1/search?limit=2&{query}{cursor}")
        assert page.status == 200, page.data
        found += [(message["queue"], message["id"]) for message in page.json["messages"]]
        if "cursor" not in page.json:
            return sorted(found)
        cursor = f"&cursor={page.json['cursor']}"


def put(client: Client, queue: str, id: str, body: Any, **more: Any) -> None:
    given = {"body": body, "id": id, "at": FAR, **more}
    assert client.post(f"/v1/queues/{queue}/messages", given).status == 201


def test_a_search_over_all_queues(client: Client) -> None:
    for n in range(3):
        put(client, "orders", f"order-{n}", {"n": n}, group="g")
        put(client, "mail", f"order-{n}", "to Ann" if n else "to Bob", headers={"t": f"x{n}"})
    put(client, "mail", "other", 1, at=FAR + 60)
    assert len(ids(client, "id=order-")) == 6
    assert ids(client, "id=order-1&queue=mail") == [("mail", "order-1")]
    assert len(ids(client, "group=g")) == 3
    assert ids(client, f"after={FAR + 1}") == [("mail", "other")]
    assert ids(client, "body=Bob") == ids(client, "header=t=x0") == [("mail", "order-0")]
    page = client.get("/v1/search?body=nothing&read=3").json
    assert (page["messages"], page["searched"], page["total"]) == ([], 3, 7)
    assert page["cursor"]
    claimed = client.get("/v1/search?state=delayed&id=order-2&queue=orders").json["messages"][0]
    assert (claimed["body"], claimed["group"]) == ({"n": 2}, "g")


@pytest.mark.parametrize(
    "query", ["", "id=", "state=x", "read=20000", "limit=0", "id=a&cursor=x", "error=", "foo=1"]
)
def test_wrong_searches_are_refused(client: Client, query: str) -> None:
    assert client.get(f"/v1/search?{query}").status == 400


def test_a_tenant_searches_its_own_queues(serve: Serve, make_token: Any) -> None:
    client = serve()
    shop, other = (
        client.with_token(make_token(name, "produce", "read", name=name))
        for name in ("shop", "other")
    )
    put(shop, "orders", "a", {"card": 1})
    put(shop, "mail", "a", 2)
    put(other, "orders", "a", 3)
    assert ids(shop, "id=a") == [("mail", "a"), ("orders", "a")]
    assert ids(other, "state=delayed") == [("orders", "a")]
    assert ids(shop, "body=3") == []
    cursor = shop.get("/v1/search?state=delayed&limit=1").json["cursor"]
    stolen = other.get(f"/v1/search?state=delayed&cursor={cursor}").json
    assert {message["body"] for message in stolen["messages"]} <= {3}
    some = make_token("shop", rights=["read"], queues=["mail"], name="some")
    reader = client.with_token(some)
    (found,) = reader.get("/v1/search?id=a").json["messages"]
    assert (found["queue"], "body" in found) == ("mail", False)
    assert reader.get("/v1/search?body=2").status == 403
    assert reader.get("/v1/search?header=x").status == 403
    writer = client.with_token(make_token("shop", "produce", name="writer"))
    assert writer.get("/v1/search?id=a").status == 403


def settings(client: Client, **given: str) -> Any:
    return client.send("PATCH", Q, given).json


def claimed(client: Client) -> dict[str, Any]:
    (message,) = client.post(f"{Q}/claim", {"holder": "w1"}).json["messages"]
    return {"id": message["id"], "token": message["token"]}


def test_history_tells_how_messages_ended(client: Client) -> None:
    told = settings(client, history="7d", result_ttl="1h")
    assert told == {
        "paused": False,
        "paused_until": None,
        "keep": 0,
        "history": 604_800_000,
        "result_ttl": 3_600_000,
        "limit": 0,
        "rate": None,
        "group_limit": 0,
        "group_rate": None,
        "overdue": "",
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


@pytest.mark.parametrize("history", ["1h", "0s"])
def test_a_result_is_answered_once_the_message_has_ended(client: Client, history: str) -> None:
    settings(client, result_ttl="1h", history=history)
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
        while not client.app.service.watches:  # it has asked, and listens
            assert waits.is_alive(), found
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


def test_a_dead_letter_says_why_it_died_to_those_who_may_read_it(
    serve: Serve, make_token: Callable[..., str]
) -> None:
    admin = serve().with_token(make_token("shop", "admin"))
    settings(admin, result_ttl="1h")
    admin.put(ONE, {"body": 1})
    admin.post(f"{Q}/bury", {"leases": [claimed(admin)], "reason": "bad"})
    for rights, told in ((["bodies"], {}), (["read", "bodies"], {"error": "bad"})):
        client = admin.with_token(make_token("shop", rights=rights))
        found = client.get(f"{ONE}/result").json
        assert found == {"id": "order-42", "how": "dead", "by": "w1", **told}


def test_what_has_ended_is_listed_in_pages(client: Client) -> None:
    assert client.get(f"{Q}/ended").json == {"messages": []}
    settings(client, history="7d", result_ttl="1h")
    for number in range(3):
        client.put(f"{Q}/messages/m{number}", {"body": 1})
        client.send("DELETE", f"{Q}/messages/m{number}")
    client.put(ONE, {"body": 1})
    client.post(f"{Q}/ack", {"leases": [{**claimed(client), "result": {"total": 3}}]})
    ids: list[str] = []
    cursor = ""
    while True:
        page = client.get(f"{Q}/ended?limit=3{cursor}").json
        ids += [message["id"] for message in page["messages"]]
        if "cursor" not in page:
            break
        cursor = f"&cursor={quote(page['cursor'])}"
    assert sorted(ids) == ["m0", "m1", "m2", "order-42"]
    (acked,) = client.get(f"{Q}/ended?how=acked").json["messages"]
    assert (acked["how"], acked["by"], acked["attempt"]) == ("acked", "w1", 1)
    assert [attempt["outcome"] for attempt in acked["attempts"]] == ["acked"]
    assert "result" not in acked
    moment = acked["moment"] / 1000
    assert client.get(f"{Q}/ended?how=acked&before={moment}").json == {"messages": []}
    assert len(client.get(f"{Q}/ended?how=acked&after={moment}").json["messages"]) == 1
    for wrong in ("how=lost", "limit=0", "cursor=x", "after=yesterday"):
        assert client.get(f"{Q}/ended?{wrong}").status == 400
    commands = [{"command": "list_ended", "queue": Q.rpartition("/")[2], "how": "acked"}]
    (reply,) = client.post("/v1/batch", {"commands": commands}).json["replies"]
    assert [message["id"] for message in reply["messages"]] == ["order-42"]
