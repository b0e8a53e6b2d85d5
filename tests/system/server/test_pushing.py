"""Push as a part of the service: what it sends and tells, and how several processes share it."""

import asyncio
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from bide.targets.pusher import Pusher
from tests.effort import one_in
from tests.servers import RedisServer
from tests.system.server.client import Client
from tests.system.server.conftest import Serve
from tests.system.server.process import ServerProcess
from tests.system.targets.http.environment import LOOPBACK, PATIENCE, until
from tests.system.targets.http.push_server import ONE, Asking, Q, play
from tests.system.targets.http.receiver import Got, Receiver, answer


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


def settings(folder: Path, **more: Any) -> tuple[str, str]:
    """Write a file of settings, and return the arguments that name it."""
    told = {"push_networks": list(LOOPBACK), "push_lease": 5, **more}
    path = folder / "serve.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items()))
    return "--config", str(path)


@pytest.mark.process
def test_two_servers_share_the_work_and_one_takes_over_from_the_other(tmp_path: Path) -> None:
    options = settings(tmp_path)
    with ServerProcess(tmp_path, *options) as one, ServerProcess(tmp_path, *options) as two:

        async def story(it: Receiver) -> None:
            ask = Asking(two.port)
            secret = await ask.subscribe(it, concurrency=6, timeout="2m")
            await ask.put(*[f"a{number}" for number in range(300)])
            await ask.acked(300)
            assert len({got.id for got in it.got}) == len(it.got) == 300
            # As soon as they know of each other, each sends its share of six.
            count, by = 300, Counter[str]()
            deadline = time.monotonic() + PATIENCE
            while sorted(by.values()) != [3, 3]:
                assert time.monotonic() < deadline, by
                it.answers(answer(200))
                await ask.acked(count)
                gate = asyncio.Event()

                async def hold(got: Got, _: object, gate: asyncio.Event = gate) -> bytes:
                    await gate.wait()
                    return answer(200)

                it.script = hold
                await ask.put(*[f"{count}-{number}" for number in range(20)])
                await until(lambda: it.under_way >= 6)
                held = await ask("GET", f"{Q}/messages?state=leased")
                by = Counter(message["holder"] for message in held["messages"])
                if sorted(by.values()) != [3, 3]:
                    gate.set()
                    count += 20
            one.kill()
            gate.set()
            await ask.acked(count + 20)
            attempts = Counter(got.headers["bide-attempt"] for got in it.got)
            # One may have leased more that it did not get to send: their first attempt is lost.
            assert len({got.id for got in it.got}) == count + 20
            assert attempts.keys() == {"1", "2"}
            assert attempts["2"] == await ask.flow("lapsed") >= 3
            assert (await ask("GET", f"{Q}/audit"))["balanced"]
            for log in (one.text, two.text):
                assert "Traceback" not in log
                assert secret not in log

        play(story)


@pytest.mark.full
@pytest.mark.process
def test_several_processes_of_a_server_share_the_work(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, *settings(tmp_path), "--workers", "2") as server:

        async def story(it: Receiver) -> None:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=4)
            for batch in range(10):
                await ask.put(*[f"{batch}-{number}" for number in range(20)])
                os.kill(server.workers()[0], signal.SIGKILL) if batch == 5 else None
            await ask.acked(200)
            assert len({got.id for got in it.got}) == 200
            assert (await ask("GET", f"{Q}/audit"))["balanced"]

        play(story)


@pytest.mark.process
@pytest.mark.parametrize("grace", one_in(2, [20, 0.2]))
def test_a_stop_finishes_what_is_under_way_or_hands_it_back(tmp_path: Path, grace: float) -> None:
    options = settings(tmp_path, grace=grace)

    async def story(it: Receiver) -> None:
        gate = asyncio.Event()

        async def hold(got: Got, _: object) -> bytes:
            await gate.wait()
            return answer(200)

        with ServerProcess(tmp_path, *options) as server:
            ask = Asking(server.port)
            it.script = hold
            await ask.subscribe(it, concurrency=2)
            await ask.put("a", "b", "c")
            await until(lambda: it.under_way == 2)
            server.process.send_signal(signal.SIGTERM)
            if grace > 1:
                await until(lambda: "s to finish" in server.text)
                gate.set()
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
            assert "Traceback" not in server.text
        it.answers(answer(200))
        with ServerProcess(tmp_path, *options) as server:
            ask = Asking(server.port)
            await ask.acked(3)
            again = [got.headers["bide-attempt"] for got in it.got]
            assert again == ["1"] * (3 if grace > 1 else 5)  # untouched: no attempt was lost
            assert await ask.flow("lapsed") == 0

    play(story)


@pytest.mark.full
@pytest.mark.process
def test_a_sigterm_to_all_processes_finishes_what_is_under_way(tmp_path: Path) -> None:
    """As systemd sends it: each process gets one from the supervisor as well."""

    async def story(it: Receiver) -> None:
        async def take_a_second(got: Got, _: object) -> bytes:
            await asyncio.sleep(1)
            return answer(200)

        it.script = take_a_second
        with ServerProcess(tmp_path, *settings(tmp_path, grace=20)) as server:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=1)
            await ask.put("a")
            await until(lambda: it.under_way == 1)
            (worker,) = server.workers()
            os.kill(worker, signal.SIGTERM)
            await until(lambda: "s to finish" in server.text)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        with ServerProcess(tmp_path, *settings(tmp_path, push=False)) as server:
            assert await Asking(server.port).flow("acked") == 1

    play(story)


@pytest.mark.full
@pytest.mark.process
def test_a_second_signal_hands_back_at_once(tmp_path: Path) -> None:
    async def story(it: Receiver) -> None:
        async def hang(got: Got, _: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        it.script = hang
        with ServerProcess(tmp_path, *settings(tmp_path, grace=40)) as server:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=1)
            await ask.put("a")
            await until(lambda: it.under_way == 1)
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: "s to finish" in server.text)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        with ServerProcess(tmp_path, *settings(tmp_path, push=False)) as server:
            ask = Asking(server.port)
            found = await ask("GET", f"{Q}/messages/a")
            assert (found["state"], found["attempt"]) == ("ready", 0)

    play(story)


@pytest.mark.process
def test_a_hanging_receiver_leaves_descriptors_for_requests(tmp_path: Path) -> None:
    async def story(it: Receiver) -> None:
        async def hang(got: Got, _: object) -> bytes:
            await asyncio.Event().wait()
            return b""

        it.script = hang
        options = settings(tmp_path, grace=0.2)
        with ServerProcess(tmp_path, *options, descriptors=300) as server:
            ask = Asking(server.port)
            await ask.subscribe(it, concurrency=1_000, timeout="5m")
            for batch in range(4):
                await ask.put(*[f"{batch}-{number}" for number in range(200)])
            await until(lambda: it.under_way >= 300 // 8)
            for _ in range(20):  # each on a connection of its own
                assert (await ask("GET", Q))["sizes"]["leased"] == it.under_way
            assert it.most <= 300 // 4
            assert "Too many open files" not in server.text

    play(story)
