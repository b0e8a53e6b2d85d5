"""PATCH: change what is named of a message, or when those of a group are due."""

import base64
from typing import Any

import pytest

from bide.model.options import OPTIONS, Option
from tests.server.client import Client, Q
from tests.server.conftest import Serve

ONE = f"{Q}/messages/order-42"
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
