"""Push as a part of the service: what it sends, and what it tells of it."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from bide.targets.pusher import Pusher
from tests.server.client import Client
from tests.server.conftest import Serve
from tests.servers import RedisServer
from tests.targets.http.environment import LOOPBACK, PATIENCE, until
from tests.targets.http.push_server import ONE, Asking, Q, play
from tests.targets.http.receiver import Receiver, answer


def test_what_is_due_is_sent_and_signed(serve: Serve) -> None:
    client = serve(push_networks=list(LOOPBACK))

    async def story(it: Receiver) -> None:
        ask = Asking(client.port)
        secret = await ask.subscribe(it, first="1h")
        await ask.put("a")
        await ask.acked(1)
        (got,) = it.got
        assert Webhook(secret).verify(got.body, got.headers) == {"order": "a"}
        assert got.headers["bide-attempt"] == "1"
        pinged = await ask("POST", f"{ONE}/ping")
        assert pinged == {"taken": True, "answer": "204 No Content"}
        it.answers(answer(500, b"hush: " + secret.encode()))
        await ask.put("b")
        told = await ask.until(ONE, lambda told: "error" in told.get("deliveries", {}))
        assert told["deliveries"]["answers"] == {"2xx": 1, "5xx": 1}
        assert told["deliveries"]["error"] == "500 Internal Server Error: hush: ***"
        assert told["circuit"]["state"] == "closed"
        assert (told["messages"]["flow"]["acked"], told["messages"]["flow"]["retried"]) == (1, 1)

    play(story)


def test_messages_of_a_namespace_go_to_its_own_subscription(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", push_networks=list(LOOPBACK))
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))

    async def story(it: Receiver) -> None:
        given = {"queue": "orders", "url": it.url}
        made = await asyncio.to_thread(shop.put, ONE, given)
        for client in (mail, shop):
            await asyncio.to_thread(client.put, f"{Q}/messages/m", {"body": client is shop})
        await until(lambda: it.got)
        assert Webhook(made.json["secret"]).verify(it.got[0].body, it.got[0].headers) is True
        assert it.got[0].headers["bide-queue"] == "orders"
        sizes = (await asyncio.to_thread(mail.get, Q)).json["sizes"]
        assert sizes["ready"] == 1

    play(story)


def test_a_server_can_be_told_not_to_push(serve: Serve) -> None:
    client = serve(push=False, push_networks=list(LOOPBACK))

    async def story(it: Receiver) -> None:
        ask = Asking(client.port)
        await ask.subscribe(it)
        await ask.put("a")
        assert client.app.service.pushing.pusher.workers == {}
        assert (await ask("POST", f"{ONE}/ping"))["taken"]  # whoever asks for it gets it
        assert await ask("GET", "/readyz") == {"status": "ready"}
        assert (await ask.sizes())["ready"] == 1
        assert [got.headers["webhook-id"].partition("/")[0] for got in it.got] == ["ping"]

    play(story)


def test_a_store_behind_another_server_is_left_to_that_one(serve: Serve) -> None:
    behind = serve(push_networks=list(LOOPBACK))
    client = serve(store=behind.url, auth="off")

    async def story(it: Receiver) -> None:
        await Asking(behind.port).subscribe(it)
        ask = Asking(client.port)
        await ask.put("a")
        await until(lambda: it.got)
        assert client.app.service.pushing.pusher.failure is None
        assert (await ask("GET", ONE))["status"] == 400

    play(story)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.mark.parametrize("options", ["", "?shards=4"])
def test_subscriptions_live_in_redis_as_well(
    redis: RedisServer, serve: Serve, options: str
) -> None:
    one = serve(store=redis.url + options, push_networks=list(LOOPBACK))
    two = serve(store=redis.url + options, push=False)

    async def story(it: Receiver) -> None:
        ask, other = Asking(one.port), Asking(two.port)
        secret = await ask.subscribe(it)
        await other("PATCH", ONE, {"concurrency": 3})
        for server in (ask, other):
            assert (await server("GET", ONE))["concurrency"] == 3
        await other.put("a", "b", "c")
        await ask.acked(3)
        for got in it.got:
            Webhook(secret).verify(got.body, got.headers)
        assert await other("DELETE", ONE) == ""
        assert await ask("GET", "/v1/subscriptions") == {"subscriptions": []}

    play(story)


def test_a_dead_receiver_is_shown(serve: Serve) -> None:
    client = serve(push_networks=list(LOOPBACK))

    async def story(it: Receiver) -> None:
        ask = Asking(client.port)
        it.answers(answer(503, b"closed for lunch"))
        await ask.subscribe(it, failures=1)
        await ask.put("a")
        told = await ask.until(ONE, lambda told: told["state"] == "open")
        assert told["circuit"]["error"] == "503 Service Unavailable: closed for lunch"
        assert told["circuit"]["probe_at"] > told["circuit"]["since"]
        it.answers(answer(200))
        assert (await ask("POST", f"{ONE}/resume"))["state"] == "active"
        await ask.acked(1)

    play(story)


def test_metrics_and_events_tell_of_it(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", push_networks=list(LOOPBACK))
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    assert shop.token is not None
    silent = serve(auth="required", push=False).with_token(shop.token)

    async def story(it: Receiver) -> None:
        it.answers(answer(503, b"closed for lunch"))
        given = {"queue": "orders", "url": f"{it.url}?key=hush-hush", "failures": 1, "probe": "1h"}
        await asyncio.to_thread(shop.put, ONE, given)
        await asyncio.to_thread(shop.put, f"{Q}/messages/m", {"body": 1})
        await until(lambda: it.got)
        told = ""
        deadline = time.monotonic() + PATIENCE
        while 'state="open",subscription="shop"} 1.0' not in told:
            assert time.monotonic() < deadline, told
            told = (await asyncio.to_thread(shop.get, "/metrics")).data.decode()
        where = 'subscription="shop"'
        assert f'bide_push_requests_total{{answer="5xx",{where}}} 1.0' in told
        assert f'bide_push_deliveries_total{{outcome="released",{where}}} ' in told
        assert f"bide_push_lateness_seconds_count{{{where}}} 1.0" in told
        assert f"bide_push_in_flight{{{where}}} 0.0" in told
        assert "hush" not in told
        assert "subscription=" not in (await asyncio.to_thread(mail.get, "/metrics")).data.decode()
        opened = {
            "subscription": "shop",
            "queue": "orders",
            "state": "open",
            "reason": "503 Service Unavailable: closed for lunch",
        }
        deadline = time.monotonic() + PATIENCE
        for client in (shop, silent):  # also of a server that pushes nothing itself
            while await asyncio.to_thread(subscriptions, client) != [opened]:
                assert time.monotonic() < deadline
            told = (await asyncio.to_thread(client.get, "/metrics")).data.decode()
            assert 'bide_push_circuit{state="open",subscription="shop"} 1.0' in told
        await asyncio.to_thread(silent.post, f"{ONE}/pause", {"reason": "their release"})
        paused = {**opened, "state": "paused", "reason": "their release"}
        for client in (shop, silent):
            while await asyncio.to_thread(subscriptions, client) != [paused]:
                assert time.monotonic() < deadline
            told = (await asyncio.to_thread(client.get, "/metrics")).data.decode()
            assert 'bide_push_paused{subscription="shop"} 1.0' in told
        assert await asyncio.to_thread(subscriptions, mail) == []

    play(story)


def subscriptions(client: Client) -> list[Any]:
    """Return what the stream of events tells of subscriptions first of all."""
    head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client.token}"
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        found, kind = [], ""
        with connection.makefile() as lines:
            for line in lines:
                kind = line.removeprefix("event: ").strip() if line.startswith("event: ") else kind
                if line.startswith("data: ") and kind == "subscription":
                    found.append(json.loads(line.removeprefix("data: ")))
                if kind == "tick":
                    break
    return found


def test_readiness_tells_when_nothing_can_be_pushed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(pusher: Pusher) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Pusher, "_refresh", fail)
    client = serve(push_networks=list(LOOPBACK))

    async def story(it: Receiver) -> None:
        ask = Asking(client.port)
        await ask.subscribe(it)
        told = await ask.until("/readyz", lambda told: told["status"] == "not ready")
        assert told["reason"] == "push failed and is tried again: RuntimeError"
        monkeypatch.undo()
        await ask.put("a")
        await until(lambda: it.got)
        await ask.until("/readyz", lambda told: told["status"] == "ready")

    play(story)
