"""Whom a server refuses: without a good token, of another namespace or site, past a quota."""

import json
from typing import Any

import pytest

from bide.server.operation import Operation
from bide.server.settings import Quota
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.test_refusals import every_guarded, path_of

# Tokens.


@every_guarded
def test_every_route_needs_a_good_token(
    serve: Serve, make_token: Any, operation: Operation
) -> None:
    good = make_token("shop", "admin")
    client = serve()
    other = make_token(None, "read", expires_ms=0)
    id, secret = good.split("_", 2)[1:]
    wrong = [None, "nonsense", good[:-1], good + "x", f"bide_{id[::-1]}_{secret}", other, "bide__x"]
    for token in wrong:
        client.token = token
        reply = client.send(operation.method, path_of(operation))
        assert reply.status == 401, token
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert good not in json.dumps(reply.problem)


@pytest.mark.parametrize(
    "command",
    [
        {"command": "put", "queue": "orders", "items": [], "on_conflict": "revive"},
        {"command": "bury", "queue": "orders", "ids": ["a"]},
        {"command": "purge", "queue": "orders", "state": "dead", "ids": ["a"]},
    ],
)
def test_what_a_move_is_made_of_is_for_admins(
    serve: Serve, make_token: Any, command: dict[str, Any]
) -> None:
    server = serve(auth="required")
    for scope, status in (("produce", 403), ("consume", 403), ("admin", 200)):
        client = server.with_token(make_token("shop", scope))
        assert client.post("/v1/batch", {"commands": [command]}).status == status


def test_namespaces_do_not_see_each_other(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    root = server.with_token(make_token(None, "admin"))
    assert shop.put(f"{Q}/messages/m", {"body": "shop"}).status == 201
    assert mail.get(f"{Q}/messages/m").status == 404
    assert mail.get("/v1/queues").json["queues"] == []
    assert mail.post(f"{Q}/claim").json["messages"] == []
    assert mail.get("/v1/queues/shop%2Forders").status == 400
    assert mail.send("DELETE", f"{Q}/messages/m").status == 404
    find = {"commands": [{"command": "find", "queue": "shop/orders", "ids": ["m"]}]}
    assert mail.post("/v1/batch", find).status == 400
    assert root.post("/v1/batch", find).json["replies"][0]["messages"][0]["id"] == "m"
    assert root.get("/v1/queues").json["queues"] == ["shop/orders"]
    tokens = {"commands": [{"command": "scan", "queue": "bide.server/tokens"}]}
    assert root.post("/v1/batch", tokens).status == 400
    (claimed,) = shop.post(f"{Q}/claim").json["messages"]
    assert claimed["queue"] == "orders"
    lease = {"leases": [{"id": "m", "token": claimed["token"]}]}
    assert mail.post(f"{Q}/ack", lease).status == 409
    assert shop.post(f"{Q}/ack", lease).status == 200


def test_a_revoked_token_is_refused_by_the_next_request(
    serve: Serve, make_token: Any, tmp_path: Any
) -> None:
    one, two = serve(auth="required"), serve(auth="required")
    text = make_token("shop", "read")
    clients = [server.with_token(text) for server in (one, two)]
    assert [client.get("/v1").json["namespace"] for client in clients] == ["shop"] * 2
    assert one.app.service.tokens.revoke(text.split("_")[1])
    assert [client.get("/v1").status for client in clients] == [401, 401]


def test_without_tokens_no_page_of_another_site_is_served(client: Client) -> None:
    rebound = client.get("/v1/queues", host="evil.example")
    assert (rebound.status, rebound.problem["field"]) == (403, "host")
    foreign = client.post(f"{Q}/messages", {"body": 1}, origin="https://evil.example")
    assert (foreign.status, foreign.problem["field"]) == (403, "origin")
    assert client.get("/v1/queues", origin="http://localhost:3000").status == 200


# Quotas.


def test_quotas_of_a_namespace(serve: Serve, make_token: Any) -> None:
    quota = Quota(rate=5, pending=7, max_body=100, longest_delay="1d")
    client = serve(auth="required", quotas={"shop": quota}).with_token(make_token("shop", "admin"))
    large = client.post(f"{Q}/messages", {"body": "x" * 200})
    assert (large.status, large.problem["field"]) == (413, "body")
    far = client.post(f"{Q}/messages", {"body": 1, "delay": "2d"})
    assert (far.status, far.problem["field"]) == (400, "delay")
    client.put(f"{Q}/messages/m", {"body": 1})
    assert client.send("PATCH", f"{Q}/messages/m", {"delay": "2d"}).status == 400
    assert client.post(f"{Q}/put", {"messages": [{"body": 1}] * 4}).status == 200
    fast = client.post(f"{Q}/put", {"messages": [{"body": 1}] * 2})
    assert (fast.status, fast.headers["retry-after"]) == (429, "1")
    full = client.post(f"{Q}/put", {"messages": [{"body": 1}] * 3})
    assert (full.status, full.problem["title"]) == (507, "The namespace is full")
    items = [{"id": "far", "data": "MQ==", "delay": 200_000_000}]
    batch = {"commands": [{"command": "put", "queue": "orders", "items": items}]}
    assert client.post("/v1/batch", batch).status == 400
