"""Another namespace's token: on every route it sees and changes nothing of ours."""

import json
import socket
from typing import Any

import pytest

from bide.server.operation import Operation
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.test_refusals import GUARDED

SECRET = "what the shop keeps to itself"
GROUP = "the-shops-group"
STATES = ("delayed", "leased", "dead")


def request_of(operation: Operation, leases: list[Any]) -> Any:
    """Return what would do something with each of the shop's messages, were it allowed to."""
    everything: dict[str, Any] = {
        "putNamed": {"body": "theirs", "delay": "2h"},
        "put": {"body": "theirs", "id": "delayed"},
        "putMany": {"messages": [{"body": 1, "id": id} for id in STATES], "on_conflict": "replace"},
        "reschedule": {"delay": "2h"},
        "claim": {"count": 10},
        "revive": {"ids": list(STATES)},
        "purge": {"state": "dead"},
        "configure": {"paused": True, "keep": "1h"},
        "putSubscription": {"queue": "hooked", "url": "https://theirs.example/"},
        "changeSubscription": {"url": "https://theirs.example/"},
        "batch": {
            "commands": [
                {"command": "find", "queue": "orders", "ids": list(STATES)},
                {"command": "scan", "queue": "orders"},
                {"command": "cancel", "queue": "orders", "where": {"group": GROUP}},
                {"command": "cancel", "queue": "orders", "ids": list(STATES)},
                {"command": "purge", "queue": "orders", "state": "dead"},
                {"command": "queues", "queue": ""},
            ]
        },
    }
    if operation.name in ("ack", "retry", "extend", "bury", "release"):
        return {"leases": leases}
    return everything.get(operation.name)


class Shop:
    """A namespace with a message in each state, and a server that others may use as well."""

    def __init__(self, server: Client, make_token: Any) -> None:
        self.mine = server.with_token(make_token("shop", "admin"))
        self.theirs = server.with_token(make_token("mail", "admin"))
        given = [{"body": SECRET, "id": id, "group": GROUP} for id in ("dead", "leased")]
        self.mine.post(f"{Q}/put", {"messages": given})
        claimed = self.mine.post(f"{Q}/claim", {"count": 2, "lease": "10m"}).json["messages"]
        self.leases = [{"id": one["id"], "token": one["token"]} for one in claimed]
        dead = [lease for lease in self.leases if lease["id"] == "dead"]
        self.mine.post(f"{Q}/bury", {"leases": dead})
        self.mine.put(f"{Q}/messages/delayed", {"body": SECRET, "delay": "1h", "group": GROUP})
        hook = {"queue": "hooked", "url": f"https://shop.example/?key={GROUP}"}
        self.mine.put("/v1/subscriptions/hooks", hook)

    def standing(self) -> Any:
        """Return all that the shop has."""
        paths = (Q, f"{Q}/messages", "/v1/subscriptions")
        return tuple(self.mine.get(path).json for path in paths)


@pytest.fixture
def shop(serve: Serve, make_token: Any) -> Shop:
    return Shop(serve(auth="required", push=False), make_token)


def test_another_namespaces_token_sees_and_changes_nothing(shop: Shop) -> None:
    for operation in GUARDED:
        before = shop.standing()
        assert before[0]["sizes"] == {"delayed": 1, "ready": 0, "leased": 1, "dead": 1}
        if operation.name == "events":
            seen = first_of_stream(shop.theirs, operation.path).encode()
        else:
            content = request_of(operation, shop.leases)
            path = operation.path.replace("{queue}", "orders").replace("{name}", "hooks")
            ids = STATES if "{id}" in path else ("",)
            seen = b""
            for id in ids:
                reply = shop.theirs.send(operation.method, path.replace("{id}", id), content)
                assert reply.status < 500
                seen += reply.data
        assert SECRET.encode() not in seen
        assert GROUP.encode() not in seen
        assert b'"shop' not in seen
        assert shop.standing() == before


def test_a_name_of_another_namespace_is_no_way_around(shop: Shop) -> None:
    for operation in GUARDED:
        if "{queue}" not in operation.path and "{name}" not in operation.path:
            continue  # it names nothing
        before = shop.standing()
        content = request_of(operation, shop.leases)
        path = operation.path.replace("{id}", "delayed").replace("{name}", "{queue}")
        own = "orders" if "{queue}" in operation.path else "hooks"
        for name in (f"shop%2F{own}", f"shop/{own}", f"..%2Fshop%2F{own}", f"mail%2F..%2F{own}"):
            reply = shop.theirs.send(operation.method, path.replace("{queue}", name), content)
            assert reply.status in (400, 404, 405), name
            assert SECRET.encode() not in reply.data
        assert shop.standing() == before


def first_of_stream(client: Client, path: str) -> str:
    """Return what a stream of events says before it falls silent."""
    head = f"GET {path}?counts=0.02 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(f"{head}{client.token}\r\n\r\n".encode())
        client.put("/v1/queues/own/messages/m", {"body": 1})
        seen = ""
        while "event: counts" not in seen:
            seen += connection.recv(65_536).decode()
    assert json.dumps({"queue": "own"})[1:-1].replace(" ", "") in seen
    return seen
