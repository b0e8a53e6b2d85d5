"""Rights: each route and each command needs the one that it declares, and no other."""

import json
import re
import sqlite3
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import bide
from bide.model import commands as cmd
from bide.model.internal_queues import internal_queue
from bide.model.message import Failure, Item
from bide.outbox import forwarder as module
from bide.outbox.forwarder import Forwarder, table_of
from bide.server.access import rights
from bide.server.access.rights import RIGHTS, rights_of
from bide.server.operation import Operation
from bide.server.routes import OPERATIONS
from bide.testing.hooks import lane_of
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.test_events import listening

GUARDED = [one for one in OPERATIONS if one.right is not None]

MINIMAL: dict[str, Any] = {
    "dues": [1_000],
    "count": 1,
    "lease": 1_000,
    "holder": "w",
    "bucket": 1_000,
    "buckets": 1,
    "state": "dead",
    "group": "none",
    "keep": 1_000,
    "id": "none",
    "ids": ["none"],
    "items": [],
    "leases": [],
    "next": [],
}


WITH_A_PAST = (
    Item("none", b"1", attempt=1),
    Item("none", b"1", failures=(Failure(1, 2, "w", "why"),)),
    Item("none", b"1", died=1_700_000_000_000),
)


def commands() -> list[cmd.Command]:
    """Return one of each command, and those variants that need other rights."""
    found: list[cmd.Command] = []
    for kind in get_args(cmd.Command):
        names = [f.name for f in msgspec.structs.fields(kind) if f.required]
        found.append(kind(**{"queue": "orders"} | {n: MINIMAL[n] for n in names if n in MINIMAL}))
    item = Item("none", b"1")
    return [
        *found,
        cmd.Put("orders", [item], "replace"),
        cmd.Put("orders", [item], "revive"),
        *(cmd.Put("orders", [letter]) for letter in WITH_A_PAST),
        cmd.Put("bide:workers", [], "replace"),
        cmd.BuryCommand("orders", ids=["none"]),
        cmd.Cancel("orders", where=cmd.Where("g"), dry_run=True),
        cmd.Scan("bide:workers"),
    ]


def request(client: Client, operation: Operation) -> int:
    path = re.sub(r"\{\w+\}", "orders", operation.path)
    if operation.name == "events":
        return _first_status(f"{client.url}{path}?counts=0", client.token)
    return client.send(operation.method, path, {} if operation.takes else None).status


def _first_status(url: str, token: str | None) -> int:
    asked = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        status: int = reply.status
        return status


def test_only_an_admin_imports_dead_letters_and_attempts(serve: Serve, make_token: Any) -> None:
    port = serve(auth="required").port
    tokens = [
        make_token("shop", rights=given) for given in (["put", "change", "consume"], ["admin"])
    ]
    fresh = '{"id": "fresh", "due": 4102444800000, "body": 1, "created": 1700000000000}'
    failure = [1, 1_700_000_000_000, "someone", "broke it"]
    past: dict[str, dict[str, Any]] = {
        "attempted": {"attempt": 1},
        "failed": {"failures": [failure]},
        "dead": {"died": 1_700_000_000_000},
    }
    lines = [
        json.dumps({"id": id, "due": 4_102_444_800_000, "body": 1, **more})
        for id, more in past.items()
    ]
    weak, strong = (bide.Queue("orders", f"http://:{token}@127.0.0.1:{port}") for token in tokens)
    with weak, strong:
        assert weak.load([fresh]).stored == 1
        for line in lines:
            with pytest.raises(bide.AccessDenied, match="'admin'"):
                weak.load([line])
        assert [message.id for message in strong.scan()] == ["fresh"]
        assert strong.load(lines).stored == 3
        dead, failed = strong.get("dead"), strong.get("failed")
        assert dead is not None
        assert failed is not None
        assert (dead.state, failed.failures[0].holder) == ("dead", "someone")


def test_every_route_is_answered_to_the_rights_that_it_declares_alone(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", push=False)
    for right in RIGHTS:
        client = server.with_token(make_token("shop", rights=[right]))
        for operation in GUARDED:
            may = right == "admin" or operation.right in ("", right)
            assert (request(client, operation) != 403) == may, (right, operation.name)


def test_every_command_is_carried_out_for_the_rights_that_it_declares_alone(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", push=False)
    allowed = {
        frozenset(rights): server.with_token(make_token("shop", rights=rights))
        for rights in {rights_of(command, internal_queue(command.queue)) for command in commands()}
        | {(r,) for r in RIGHTS}
    }
    for command in commands():
        data = msgspec.json.encode({"commands": [command]})
        for held, client in allowed.items():
            may = "admin" in held or held >= set(rights_of(command, internal_queue(command.queue)))
            status = client.send("POST", "/v1/batch", data=data).status
            assert (status == 200) == may, (held, command, status)
            assert status in (200, 403)


def test_replacing_needs_the_right_to_change(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    client = server.with_token(make_token("shop", rights=["put", "bodies"]))
    etag = client.put(f"{Q}/messages/m", {"body": 1}).headers["etag"]
    replaced = [
        client.put(f"{Q}/messages/m?on_conflict=replace", {"body": 2}),
        client.put(f"{Q}/messages/m", {"body": 2}, if_match=etag),
        client.post(f"{Q}/put", {"messages": [{"id": "m", "body": 2}], "on_conflict": "replace"}),
    ]
    for reply in replaced:
        assert (reply.status, "'change'" in reply.problem["detail"]) == (403, True)


@pytest.mark.parametrize("scope", ["produce", "consume", "read"])
def test_scopes_are_sets_of_rights(serve: Serve, make_token: Any, scope: str) -> None:
    known = serve(auth="required").with_token(make_token("shop", scope)).get("/v1").json
    expected = {"produce": ["put", "change"], "consume": ["consume"], "read": ["read", "bodies"]}
    assert (known["rights"], known["queues"]) == (expected[scope], ["*"])


def test_bodies_and_headers_are_shown_to_those_who_may_see_them(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required")
    admin = server.with_token(make_token("shop", "admin"))
    for id in ("m", "dead"):
        admin.put(f"{Q}/messages/{id}", {"body": "CANARY", "headers": {"key": "CANARY"}})
    (lease,) = admin.post(f"{Q}/claim").json["messages"]
    admin.post(f"{Q}/bury", {"leases": [{"id": lease["id"], "token": lease["token"]}]})
    reads = server.with_token(make_token("shop", "read"))
    looks = server.with_token(text := make_token("shop", rights=["read"]))
    paths = (f"{Q}/messages/m", f"{Q}/messages", f"{Q}/dead")
    find = {
        "commands": [
            {"command": "find", "queue": "orders", "ids": ["m"]},
            {"command": "scan", "queue": "orders"},
        ]
    }
    for client, seen in ((reads, True), (looks, False)):
        for path in paths:
            assert (b"CANARY" in client.get(path).data) == seen, path
        assert (client.get(f"{Q}/messages/m/body").status == 200) == seen
        data = client.post("/v1/batch", find).data
        assert (b'"key"' in data) == seen
        assert (b"IkNBTkFSWSI" in data) == seen
    with bide.Queue("orders", f"http://:{text}@127.0.0.1:{server.port}") as queue:
        found = queue.get("m")
        assert found is not None
        assert found.state in ("ready", "dead", "delayed")
        with pytest.raises(bide.AccessDenied, match="no right 'bodies'"):
            _ = found.body
        with pytest.raises(bide.AccessDenied, match="no right 'bodies'"):
            list(queue.export())


def test_no_etag_tells_who_may_not_see_a_body_whether_a_guess_is_right(
    serve: Serve, make_token: Any
) -> None:
    server, one = serve(auth="required"), f"{Q}/messages/m"
    admin = server.with_token(make_token("shop", "admin"))
    right = admin.put(one, {"body": {"pin": 1234}, "delay": "1h"}).headers["etag"]
    guesser = server.with_token(make_token("shop", rights=["read", "put", "change"]))
    seen = guesser.get(one, if_none_match=right)
    assert (seen.status, "etag" in seen.headers) == (200, False)
    for match in (right, '"0123456789abcdef"', f"{right}, *"):
        for method, content in (("PATCH", {"priority": 1}), ("PUT", {"body": 1}), ("DELETE", None)):
            refused = guesser.send(method, one, content, if_match=match)
            assert (refused.status, "etag" in refused.headers) == (403, False)
            assert "bodies" in refused.problem["detail"]
    move = {"command": "reschedule", "queue": "orders", "ids": ["m"], "delay": 1}
    for version in ({"if_version": right.strip('"')}, {"versions": ["0123456789abcdef"]}):
        assert guesser.post("/v1/batch", {"commands": [{**move, **version}]}).status == 403
    assert guesser.send("PATCH", one, {"priority": 1}, if_match="*").status == 200
    changer = server.with_token(make_token("shop", rights=["read", "bodies", "change"]))
    etag = changer.get(one).headers["etag"]
    assert changer.send("DELETE", one, if_match=etag).status == 200


@pytest.fixture
def two_queues(serve: Serve, make_token: Any) -> Callable[..., Client]:
    """Provide tokens for `orders*` of a namespace that has the queue `mail` as well."""
    server = serve(auth="required", push=False)
    admin = server.with_token(make_token("shop", "admin"))
    for queue in ("orders", "orders.eu", "mail"):
        admin.put(f"/v1/queues/{queue}/messages/m", {"body": 1})
        hook = {"queue": queue, "url": "https://shop.example/"}
        assert admin.put(f"/v1/subscriptions/{queue}", hook).status == 201
    admin.post("/v1/queues/mail/claim", {"holder": "mail-worker"})
    admin.post("/v1/queues/orders/claim", {"holder": "order-worker"})

    def client(*rights: str, queues: tuple[str, ...] = ("orders*",)) -> Client:
        return server.with_token(make_token("shop", *rights, queues=queues))

    return client


def test_a_token_of_some_queues_reaches_no_other(two_queues: Callable[..., Client]) -> None:
    client = two_queues("admin")
    for operation in GUARDED:
        if "{queue}" in operation.path or "{name}" in operation.path:
            content = {"queue": "mail", "url": "https://x.example/"}
            asked = content if operation.name == "putSubscription" else {}
            path = re.sub(r"\{\w+\}", "mail", operation.path)
            reply = client.send(operation.method, path, asked if operation.takes else None)
            assert reply.status in ((403,) if operation.takes is None else (403, 400)), operation
            assert b"mail-worker" not in reply.data
    for command in commands():
        if isinstance(command, cmd.Queues) or command.queue != "orders":
            continue
        there = msgspec.structs.replace(command, queue="mail")
        data = msgspec.json.encode({"commands": [there]})
        assert client.send("POST", "/v1/batch", data=data).status == 403, command
    moved = client.send("PATCH", "/v1/subscriptions/orders", {"queue": "mail"})
    assert moved.status in (400, 403)
    assert client.get("/v1/queues/orders.eu").status == 200


def test_lists_show_the_queues_of_the_token_alone(two_queues: Callable[..., Client]) -> None:
    client = two_queues("read")
    assert client.get("/v1/queues").json["queues"] == ["orders", "orders.eu"]
    names = {"commands": [{"command": "queues", "queue": ""}]}
    assert client.post("/v1/batch", names).json["replies"][0]["names"] == ["orders", "orders.eu"]
    hooks = client.get("/v1/subscriptions").json["subscriptions"]
    assert [one["name"] for one in hooks] == ["orders", "orders.eu"]
    assert client.get("/v1/usage").json["messages"] == 2
    figures = client.get("/metrics").data
    assert b'queue="orders"' in figures
    assert b"mail" not in figures
    with listening(client, "counts=0.02&workers=true") as stream:
        seen = json.dumps([stream.until("workers"), stream.until("tick")])
    assert "order-worker" in seen
    assert "mail" not in seen


def test_a_worker_of_some_queues_still_says_that_it_is_there(
    two_queues: Callable[..., Client],
) -> None:
    client = two_queues("consume")
    put = {"command": "put", "queue": "bide:workers", "items": [], "on_conflict": "replace"}
    look = {"command": "scan", "queue": "bide:workers"}
    assert client.post("/v1/batch", {"commands": [put]}).status == 200
    assert two_queues("read").post("/v1/batch", {"commands": [look]}).status == 403


def test_the_orders_in_internal_queues_are_written_by_admins_alone(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", push=False)
    others = server.with_token(make_token("shop", rights=["put", "change", "consume", "read"]))
    admin = server.with_token(make_token("shop", "admin"))
    for queue in ("bide:stops", "bide:declared", "bide:workers"):
        path = f"/v1/queues/{queue}"
        message = f"{path}/messages/orders"
        bulk = {"command": "bulk", "queue": queue, "undo": "0" * 26, "ids": ["orders"]}
        for client, status in ((others, 403), (admin, 200)):
            replies = [
                client.put(message, {"body": {"limit": 3}, "delay": "1h"}),
                client.post(f"{path}/put", {"messages": [{"id": "mail", "body": 1}]}),
                client.send("PATCH", message, {"priority": 1}),
                client.post(f"{path}/claim", {}),
                client.post("/v1/batch", {"commands": [{**bulk, "verb": "reschedule"}]}),
                client.send("DELETE", message),
            ]
            statuses = [200 if reply.status == 201 else reply.status for reply in replies]
            assert statuses == [status] * len(replies), (queue, client is admin, statuses)
    assert others.get("/v1/queues/bide:stops/messages").status == 403
    assert others.get("/v1/queues/bide:declared/messages").status == 200
    assert others.put("/v1/queues/bide:move/messages/a", {"body": 1}).status == 201


ZONES = "bide:zones"
"""The queue with which a server looks after local dates; it may come at any time."""


def test_a_list_has_no_queue_that_the_caller_may_not_read(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", push=False)
    admin = server.with_token(make_token(None, "admin"))
    for queue in ("orders", "bide:stops", "bide:declared"):
        assert admin.put(f"/v1/queues/{queue}/messages/a", {"body": 1, "delay": 9}).status == 201
    reader = server.with_token(make_token(None, rights=["read"]))
    for client, names in (
        (admin, ["bide:declared", "bide:stops", "orders"]),
        (reader, ["bide:declared", "orders"]),
    ):
        asked = {"commands": [{"command": "queues", "queue": ""}]}
        told = client.post("/v1/batch", asked).json["replies"][0]["names"]
        assert [name for name in told if name != ZONES] == names
        listed = client.get("/v1/queues?prefix=bide:").json["queues"]
        assert [name for name in listed if name != ZONES] == names[:-1]
        for name in names:  # what `bide audit --all` does
            count = {"command": "count", "queue": name}
            assert client.post("/v1/batch", {"commands": [count]}).status == 200


@pytest.mark.parametrize(
    ("pattern", "queue", "fits"),
    [
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "ordersXeu", False),
        ("*.eu", "orders.eu", True),
        ("*", "mail", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a**b", "aXb", True),
        ("a*b*c", "abcbbc", True),
        ("*ab*ab", "aab", False),
        ("*ab*ab", "aabab", True),
        ("*a" * 20 + "b", "a" * 128, False),  # there are 10^23 ways to try it
    ],
)
def test_patterns(serve: Serve, make_token: Any, pattern: str, queue: str, fits: bool) -> None:
    client = serve(auth="required").with_token(make_token("shop", "read", queues=[pattern]))
    assert client.get(f"/v1/queues/{queue}").status == (200 if fits else 403)


def test_names_that_are_too_long_are_not_remembered(serve: Serve, make_token: Any) -> None:
    client = serve(auth="required").with_token(make_token("shop", "read", queues=["orders.*"]))
    before = rights.fits_any.cache_info().currsize
    refused = client.get(f"/v1/queues/orders.{'q' * 1_000}")
    assert (refused.status, len(refused.problem["detail"]) < 1_000) == (403, True)
    assert rights.fits_any.cache_info().currsize == before


def test_what_a_token_denies_waits_and_the_other_queues_go_on(
    serve: Serve, make_token: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = serve(auth="required").port
    weak, strong = (make_token("shop", rights=rights) for rights in (["put"], ["admin"]))

    def queue(name: str, token: str) -> bide.Queue:
        return bide.Queue(name, f"http://:{token}@127.0.0.1:{port}")

    url = f"sqlite:///{tmp_path}/shop.db"
    with (
        queue("mails", weak) as mails,
        queue("orders", weak) as orders,
        queue("mails", strong) as all_mails,
        queue("orders", strong) as all_orders,
        closing(table_of(url)) as table,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        all_mails.put(1, id="old", delay="1h")
        mails.cancel("old", within=shop)
        for number in range(700):  # more than a batch
            mails.cancel(f"none-{number}", within=shop)
        orders.put(2, id="a", delay="1h", within=shop)
        mails.put(3, id="new", delay="1h", within=shop)
        shop.commit()
        with pytest.raises(bide.AccessDenied, match="'change'"):
            Forwarder(lambda: table_of(url), lane_of(orders)).run_once()
        assert [message.id for message in all_orders.scan()] == ["a"]
        assert [message.id for message in all_mails.scan()] == ["old"]
        assert len(table.read(1_000)) == 702

        monkeypatch.setattr(module, "POLL", 0)  # it tries them again
        assert Forwarder(lambda: table_of(url), lane_of(all_orders)).run_once()
        assert [message.id for message in all_mails.scan()] == ["new"]
        assert table.read(1) == []
