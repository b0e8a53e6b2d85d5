"""Clients that vanish, dawdle, or never finish what they began."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import bide
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.waiting import until


def raw(client: Client, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=60)
    connection.sendall(data)
    return connection


def claiming(client: Client, **content: object) -> socket.socket:
    data = json.dumps(content).encode()
    token = f"Authorization: Bearer {client.token}\r\n" if client.token else ""
    head = (
        f"POST {Q}/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{token}Content-Length: {len(data)}\r\n\r\n"
    )
    return raw(client, head.encode() + data)


def test_tls_where_none_is_spoken_is_told(client: Client) -> None:
    with bide.Queue("orders", f"https://localhost:{client.port}") as queue:
        with pytest.raises(bide.StoreUnavailable, match="does it speak TLS"):
            queue.put(1)


def test_two_hundred_that_vanish_in_mid_claim_lose_nothing(client: Client) -> None:
    service = client.app.service
    waiting = [claiming(client, wait="1m", lease="10m") for _ in range(200)]
    until(lambda: service.claimers.waiting == 200)
    for connection in waiting[:100]:
        connection.close()
    # Half of them have left, and half leave while messages are handed out.
    client.post(f"{Q}/put", {"messages": [{"body": n, "id": f"m{n}"} for n in range(100)]})
    for connection in waiting[100:]:
        connection.close()
    until(lambda: service.claimers.waiting == 0)
    # What was written to a connection before it was closed is its reader's; all else is here.
    taken: list[str] = []

    def accounted_for() -> bool:
        heir = {"count": 200, "lease": "10m", "holder": "heir"}
        taken.extend(m["id"] for m in client.post(f"{Q}/claim", heir).json["messages"])
        leased = client.get(f"{Q}/messages?state=leased&limit=1000").json["messages"]
        lost = [m["id"] for m in leased if m["holder"] != "heir"]
        return sorted(taken + lost) == sorted(f"m{n}" for n in range(100))

    until(accounted_for)
    assert client.get(f"{Q}/audit").json["balanced"]


def test_whoever_left_before_the_moment_has_claimed_nothing(client: Client) -> None:
    service = client.app.service
    waiting = [claiming(client, wait="1m", lease="10m") for _ in range(200)]
    until(lambda: service.claimers.waiting == 200)
    for connection in waiting:
        connection.close()
    until(lambda: service.claimers.waiting == 0)
    client.post(f"{Q}/put", {"messages": [{"body": n} for n in range(200)]})
    assert len(client.post(f"{Q}/claim", {"count": 500}).json["messages"]) == 200


def test_a_request_that_is_half_sent_is_given_up(serve: Serve) -> None:
    client = serve(request_timeout=0.1)
    head = f"POST {Q}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    silent, slow = raw(client, b""), raw(client, head.encode())
    unfinished = raw(client, f"{head}Content-Length: 50\r\n\r\n{{".encode())
    assert client.get("/healthz").status == 200
    assert silent.recv(100) == b""
    assert slow.recv(100) == b""
    assert b" 408 " in unfinished.recv(1_000)
    for connection in (silent, slow, unfinished):
        connection.close()


def test_whoever_leaves_in_mid_request_has_put_nothing(client: Client) -> None:
    head = f"POST {Q}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Content-Length: 50\r\n\r\n"
    raw(client, head.encode() + b'{"body": 1').close()
    requests = client.app.service.requests
    until(lambda: ("put", 499) in requests)
    assert client.get("/v1/queues").json["queues"] == []


def test_what_is_no_http_is_refused(client: Client) -> None:
    with raw(client, b"nonsense\r\n\r\n") as connection:
        assert b" 400 " in connection.recv(1_000)
    assert client.get("/healthz").status == 200


def test_a_slow_reader_holds_up_nobody(client: Client) -> None:
    body = "x" * 900_000
    client.post(f"{Q}/put", {"messages": [{"body": body, "id": f"m{n}"} for n in range(20)]})
    head = f"GET {Q}/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    slow = raw(client, b"")
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)  # most stays at the server
    slow.sendall(head.encode())
    for _ in range(20):
        assert client.get("/healthz").status == 200
    with slow:  # it was not cut off for that
        answer, content = b"".join(iter(lambda: slow.recv(1_000_000), b"")).split(b"\r\n\r\n")
    assert len(content) > 8_000_000
    assert b"content-length: %d\r\n" % len(content) in answer + b"\r\n"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_events_tell_what_happens(client: Client, stack: ExitStack) -> None:
    client.put(f"{Q}/messages/first", {"body": 1, "delay": "1h"})
    with raw(client, b"GET /v1/events?counts=0.02 HTTP/1.1\r\nHost: localhost\r\n\r\n") as stream:
        lines = stack.enter_context(stream.makefile())
        assert "200" in next(lines)
        assert _event(lines, "counts")["counts"]["sizes"]["delayed"] == 1
        client.put(f"{Q}/messages/second", {"body": 1})
        hint, counts = _events(lines, "hint", "counts")
        assert hint == {"queue": "orders", "wake_in": 0}
        assert counts["counts"]["flow"]["put"] == 2
    stack.close()
    until(lambda: len(client.app.service.events) == 0)


def test_events_are_those_of_the_namespace(
    serve: Serve, make_token: Callable[..., str], stack: ExitStack
) -> None:
    server = serve(auth="required")
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    head = "GET /v1/events?counts=0 HTTP/1.1\r\nHost: localhost\r\n"
    with raw(server, f"{head}Authorization: Bearer {shop.token}\r\n\r\n".encode()) as stream:
        lines = stack.enter_context(stream.makefile())
        assert "200" in next(lines)
        until(lambda: len(server.app.service.events) == 1)
        mail.put(f"{Q}/messages/m", {"body": 1})
        shop.put("/v1/queues/mine/messages/m", {"body": 1})
        assert _event(lines, "hint")["queue"] == "mine"


def _event(lines: Iterator[str], kind: str) -> Any:
    """Return the data of the next event of a kind."""
    (data,) = _events(lines, kind)
    return data


def _events(lines: Iterator[str], *kinds: str) -> list[Any]:
    """Return the data of the next event of each kind, in whatever order they come."""
    texts: dict[str, str] = {}
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ").strip()
        if line.startswith("data: ") and kind in kinds:
            texts.setdefault(kind, line.removeprefix("data: "))
            if len(texts) == len(kinds):
                return [json.loads(texts[kind]) for kind in kinds]
    raise AssertionError(f"no event of {kinds}")
