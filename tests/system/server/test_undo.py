"""Bulk changes over HTTP that are taken back: routes, rights, namespaces, quotas."""

from collections.abc import Callable
from typing import Any

import pytest

import bide
from bide.model.undoing import PART
from bide.server.limits import quotas
from bide.server.settings import Quota
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.test_events import listening

COUNT = PART + 3


def fill(client: Client, count: int = COUNT) -> None:
    messages = [{"body": n, "id": f"m{n}", "group": "g", "delay": 3_600} for n in range(count)]
    assert client.post(f"{Q}/put", {"messages": messages}).status == 200


def bury(client: Client, count: int = 3) -> None:
    client.post(f"{Q}/put", {"messages": [{"body": n, "id": f"d{n}"} for n in range(count)]})
    claimed = client.post(f"{Q}/claim", {"count": count}).json["messages"]
    leases = [{"id": one["id"], "token": one["token"]} for one in claimed]
    client.post(f"{Q}/bury", {"leases": leases, "reason": "no"})


def sizes(client: Client) -> dict[str, int]:
    found: dict[str, int] = client.get(Q).json["sizes"]
    return found


def repeated(ask: Callable[[str | None], Any]) -> tuple[int, str]:
    """Repeat a request with the cursor; return how many were changed, and the token."""
    count, cursor, undo = 0, None, set()
    while True:
        reply = ask(cursor).json
        count += reply["count"]
        undo.add(reply["undo"])
        cursor = reply.get("cursor")
        assert (cursor is not None) == reply.get("more", cursor is not None)
        if cursor is None:
            (token,) = undo
            return count, token


def test_a_group_is_cancelled_or_moved_and_taken_back(client: Client) -> None:
    fill(client)

    def at(cursor: str | None) -> str:
        return f"{Q}/messages?group=g&undo=true" + (f"&cursor={cursor}" if cursor else "")

    count, undo = repeated(lambda cursor: client.send("DELETE", at(cursor)))
    assert (count, sizes(client)["delayed"]) == (COUNT, 0)
    restored = client.post(f"{Q}/undo", {"undo": undo}).json
    assert restored == {"restored": COUNT, "taken": 0, "claimed": 0, "unknown": 0, "again": 0}
    assert sizes(client)["delayed"] == COUNT
    assert client.post(f"{Q}/undo", {"undo": undo}).json["again"] == COUNT

    moving = {"delay": "1d"}
    dry = client.send("PATCH", f"{Q}/messages?group=g&dry_run=true", moving).json
    assert dry == {"count": COUNT}
    due = client.get(f"{Q}/messages/m0").json["due"]
    count, undo = repeated(lambda cursor: client.send("PATCH", at(cursor), moving))
    assert count == COUNT
    assert client.get(f"{Q}/messages/m0").json["due"] > due
    assert client.post(f"{Q}/undo", {"undo": undo}).json["restored"] == COUNT
    assert client.get(f"{Q}/messages/m0").json["due"] == due


def test_dead_letters_are_revived_or_purged_and_taken_back(client: Client) -> None:
    bury(client)
    revived = client.post(f"{Q}/revive", {"undo": True}).json
    assert (revived["count"], revived["more"], sizes(client)["dead"]) == (3, False, 0)
    assert client.post(f"{Q}/undo", {"undo": revived["undo"]}).json["restored"] == 3
    chosen = client.post(f"{Q}/revive", {"undo": True, "ids": ["d1", "none"]}).json
    assert chosen["count"] == 1
    assert client.post(f"{Q}/undo", {"undo": chosen["undo"]}).json["restored"] == 1
    purged = client.post(f"{Q}/purge", {"state": "dead", "undo": True}).json
    assert (purged["count"], sizes(client)["dead"]) == (3, 0)
    assert client.post(f"{Q}/undo", {"undo": purged["undo"]}).json["restored"] == 3
    assert sizes(client)["dead"] == 3


def test_a_dry_run_of_purge_and_revive_only_counts(client: Client) -> None:
    fill(client)
    bury(client)
    before = sizes(client)
    purge, revive = f"{Q}/purge", f"{Q}/revive"
    for state, count in (("delayed", COUNT), ("ready", 0), ("dead", 3)):
        found = client.post(purge, {"state": state, "dry_run": True}).json
        assert found == {"count": count, "more": False}
    asked = {"state": "delayed", "before": "2100-01-01T00:00:00Z", "dry_run": True}
    first = client.post(purge, asked).json
    rest = client.post(purge, {**asked, "cursor": first["cursor"]}).json
    assert first == {"count": 500, "more": True, "cursor": first["cursor"]}
    assert rest == {"count": COUNT - 500, "more": False}
    assert client.post(purge, {**asked, "cursor": "x"}).problem["field"] == "cursor"
    assert client.post(revive, {"dry_run": True}).json == {"count": 3}
    chosen = {"ids": ["d1", "d1", "none", "m1"], "dry_run": True}
    assert client.post(revive, chosen).json == {"count": 1}
    assert sizes(client) == before


def test_what_cannot_be_taken_back_is_refused(client: Client) -> None:
    for token in ("x", "0" * 26):
        problem = client.post(f"{Q}/undo", {"undo": token}).problem
        assert (problem["status"], problem["error"]) == (404, "NothingToUndo")
    for cursor in ("x", "W10", "WyJ4IiwxLG51bGwsIngiXQ"):
        reply = client.send("DELETE", f"{Q}/messages?group=g&undo=true&cursor={cursor}")
        assert reply.problem["field"] == "cursor"
    assert client.post(f"{Q}/purge", {"state": "acked", "undo": True}).status == 400


def test_who_may_make_a_change_may_take_it_back(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    admin = server.with_token(make_token("shop", "admin"))
    changes = server.with_token(make_token("shop", rights=["change"]))
    other = server.with_token(make_token("mall", "admin"))
    some = server.with_token(make_token("shop", "admin", queues=["mail*"]))
    fill(admin, 3)
    bury(admin)
    cancelled = changes.send("DELETE", f"{Q}/messages?group=g&undo=true").json
    purged = admin.post(f"{Q}/purge", {"state": "dead", "undo": True}).json
    for token, change, status in (
        (other, cancelled, 404),
        (some, cancelled, 403),
        (changes, purged, 403),
    ):
        assert token.post(f"{Q}/undo", {"undo": change["undo"]}).status == status
    assert changes.post(f"{Q}/purge", {"state": "dead", "undo": True}).status == 403
    assert changes.post(f"{Q}/undo", {"undo": cancelled["undo"]}).json["restored"] == 3
    assert admin.post(f"{Q}/undo", {"undo": purged["undo"]}).json["restored"] == 3


def test_no_caller_reaches_the_records(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    admin = server.with_token(make_token("shop", "admin"))
    fill(admin, 1)
    undo = admin.send("DELETE", f"{Q}/messages?group=g&undo=true").json["undo"]
    forged = {"id": f"{undo}:0", "data": "wcE=", "json": False}
    put = {"command": "put", "items": [forged], "on_conflict": "replace"}
    edit = {"command": "edit", "ids": [f"{undo}:0"], "data": "wcE=", "json": False}
    for token in (admin, server.with_token(make_token(None, "admin"))):
        queue = "bide:undo" if token is admin else "shop/bide:undo"
        for command in (
            put,
            edit,
            {"command": "scan"},
            {"command": "claim", "count": 9, "lease": 1_000, "holder": "w"},
        ):
            batch = {"commands": [command | {"queue": queue}]}
            assert token.post("/v1/batch", batch).status == 403
        path = f"/v1/queues/{queue.replace('/', '%2F')}"
        assert token.get(f"{path}/messages").status == 403
        assert token.put(f"{path}/messages/{undo}:0", {"body": 1}).status == 403
        names_of_bide = token.get("/v1/queues?prefix=bide:").json["queues"]
        assert not [name for name in names_of_bide if "undo" in name]
        names = {"commands": [{"command": "queues", "queue": ""}]}
        assert queue not in token.post("/v1/batch", names).json["replies"][0]["names"]
        assert token.get("/v1/search?queue=bide:&state=ready").json["messages"] == []
    with listening(admin, "counts=0.02&prefix=bide:") as stream:
        assert stream.look()[0] == "tick"
    assert server.app.service.failed_look is None
    assert admin.post(f"{Q}/undo", {"undo": undo}).json["restored"] == 1


def test_a_server_whose_store_is_a_server_has_that_one_note_and_take_back_changes(
    serve: Serve, make_token: Any
) -> None:
    store = serve(auth="required")
    relay = serve(store=f"http://:{make_token('shop', 'admin')}@127.0.0.1:{store.port}")
    fill(relay, 3)
    undo = relay.send("DELETE", f"{Q}/messages?group=g&undo=true").json["undo"]
    assert sizes(relay)["delayed"] == 0
    assert relay.post(f"{Q}/undo", {"undo": undo}).json["restored"] == 3


def test_a_queue_on_a_server_needs_no_more_rights(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    text = make_token("shop", "produce", queues=["orders*"])
    with bide.Queue("orders", f"http://:{text}@127.0.0.1:{server.port}") as orders:
        orders.put_many(range(5), group="g", delay=60)
        cancelled = orders.cancel(group="g", undo=True)
        assert (cancelled, orders.undo(cancelled.undo).restored) == (5, 5)
        with pytest.raises(bide.AccessDenied, match="admin"):
            orders.purge(state="delayed", undo=True)


def test_what_comes_back_needs_room(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "RECOUNT_EVERY", -1.0)
    server = serve(auth="required", quotas={"shop": Quota(pending=6)})
    admin = server.with_token(make_token("shop", "admin"))
    fill(admin, 3)
    undo = admin.send("DELETE", f"{Q}/messages?group=g&undo=true").json["undo"]
    others = [{"body": n, "id": f"o{n}", "delay": 60} for n in range(3)]
    assert admin.post("/v1/queues/others/put", {"messages": others}).status == 200
    full = admin.post(f"{Q}/undo", {"undo": undo})
    assert (full.status, sizes(admin)["delayed"]) == (507, 0)
    admin.send("DELETE", "/v1/queues/others/messages?before=2099-01-01T00:00:00Z")
    assert admin.post(f"{Q}/undo", {"undo": undo}).json["restored"] == 3
    assert sizes(admin)["delayed"] == 3


def test_what_comes_back_too_fast_is_not_taken_for_a_full_store(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", quotas={"shop": Quota(rate=0.001)})
    text = make_token("shop", "admin")
    fill(server.with_token(text), 3)
    with bide.Queue("orders", f"http://:{text}@127.0.0.1:{server.port}") as orders:
        cancelled = orders.cancel(group="g", undo=True)
        with pytest.raises(bide.StoreUnavailable, match="messages a second; try again in"):
            orders.undo(cancelled.undo)
