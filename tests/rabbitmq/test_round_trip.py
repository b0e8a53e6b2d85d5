"""The whole way: into RabbitMQ with a delay, cancelled or moved in the store, and out again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest

import bide
from tests.rabbitmq.environment import PATIENCE, Stage
from tests.servers import free_port

FACES = {
    "rabbitmq": ["rabbitmq", "--metrics", "127.0.0.1:{port}"],
    "serve": ["serve", "--port", "{port}"],
    "worker": ["worker", "app:app", "--metrics", "127.0.0.1:{port}"],
}
PUSH = ["serve", "--port", "{port}", "--allow-network", "127.0.0.1"]


@asynccontextmanager
async def process(stage: Stage, face: str, port: int, folder: Path) -> AsyncIterator[None]:
    """Run a command of bide that takes in the messages of the stage's exchange."""
    (folder / "app.py").write_text(
        "import bide\napp = bide.App()\n@app.handler('other')\ndef other(body): ...\n"
    )
    environment = os.environ | {
        "BIDE_URL": f"sqlite:///{stage.path}",
        "BIDE_LOG_LEVEL": "debug",
        "BIDE_RABBITMQ": stage.url() if face in FACES else "",
    }
    with (folder / "log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bide",
            *[word.format(port=port) for word in FACES.get(face, PUSH)],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    except BaseException:
        sys.stderr.write((folder / "log").read_text())
        raise
    finally:
        running.send_signal(signal.SIGTERM)
        await asyncio.wait_for(running.wait(), PATIENCE)
    assert "Traceback" not in (folder / "log").read_text()
    assert running.returncode == 0


async def sent(stage: Stage, id: str, delay: int) -> None:
    """Publish with a delay, as soon as the exchange for that is there."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await stage.send(b"{}", message_id=id, headers={"x-delay": delay})
            return
        except aio_pika.exceptions.AMQPError:
            assert time.monotonic() < deadline, "the exchange is never declared"
            await asyncio.sleep(0.1)
            if stage.channel.is_closed:
                await stage.channel.reopen()


@pytest.mark.parametrize("face", FACES)
def test_a_message_can_be_cancelled_and_moved_until_it_is_published(
    stage: Stage, face: str, tmp_path: Path
) -> None:
    async def story() -> None:
        port = free_port()
        async with process(stage, face, port, tmp_path):
            for id in ("cancelled", "sooner", "later", "now"):
                await sent(stage, id, 100 if id == "now" else 3_600_000)
            await stage.stored(4)
            queue = bide.AsyncQueue(stage.exchange, url=f"sqlite:///{stage.path}")
            async with queue:
                assert await queue.cancel("cancelled")
                assert await queue.reschedule("sooner", delay=0.2)
                assert not await queue.cancel("nothing")
                got = [await stage.receive(), await stage.receive()]
                assert {one.message_id for one in got} == {"sooner", "now"}
                for one in got:
                    assert (one.routing_key, one.exchange) == ("k", stage.exchange)
                    assert "x-delay" not in one.headers
                assert not await queue.cancel("sooner")
                assert (await queue.get("later")) is not None
            if face == "rabbitmq":
                told = await until_listed(stage)
                (shown,) = told["queues"]
                assert (shown["queue"], shown["delayed"]) == (stage.exchange, 1)
            if face != "worker":
                page = await asyncio.to_thread(metrics, port)
                labels = f'exchange="{stage.exchange}"'
                assert f'bide_rabbitmq_messages_total{{{labels},outcome="stored"}} 4.0' in page
                assert f"bide_rabbitmq_connected{{{labels}}} 1.0" in page
                assert 'bide_push_deliveries_total{outcome="acked"' in page
        flow = (await stage.counts()).flow
        assert (flow.put, flow.acked, flow.cancelled) == (4, 2, 1)

    stage.play(story)


def test_a_subscription_is_made_and_used_by_http_by_command_and_by_python(
    stage: Stage, tmp_path: Path
) -> None:
    """Each message brings a routing key, headers, an expiration and a priority of its own."""
    headers = {
        "amqp-key": "k",
        "amqp-expiration": "60000",
        "amqp-priority": "7",
        "tenant": "eu",
        "amqp-headers": '{"number": 5}',
    }
    to = stage.url("&key=nowhere")

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "bide", *arguments, "--url", f"sqlite:///{stage.path}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def story() -> None:
        port = free_port()
        async with process(stage, "push", port, tmp_path):
            base = f"http://127.0.0.1:{port}/v1"
            wanted = {"queue": "h", "url": to}
            await until_listening(port)
            await asyncio.to_thread(ask, f"{base}/subscriptions/h", wanted)
            await asyncio.to_thread(command, "subscription", "add", "c", "--to", to)
            store = f"sqlite:///{stage.path}"
            assert await asyncio.to_thread(bide.subscribe, "p", to, url=store) is None
            assert await asyncio.to_thread(bide.subscribe, "r", to, url=base[:-3]) is None

            message = {"body": 1, "headers": headers, "delay": "300ms"}
            await asyncio.to_thread(ask, f"{base}/queues/h/messages/h", message)
            given = [word for item in headers.items() for word in ("--header", "=".join(item))]
            await asyncio.to_thread(command, "put", "c", "1", "--id", "c", *given)
            async with bide.AsyncQueue("p", url=store) as queue:
                await queue.put(1, id="p", headers=headers)
            async with bide.AsyncQueue("r", url=store) as queue:
                await queue.put(1, id="r", headers=headers)
            for _ in range(4):
                got = await stage.receive()
                assert got.headers["bide-queue"] == got.message_id in ("h", "c", "p", "r")
                assert (got.routing_key, got.expiration, got.priority) == ("k", 60.0, 7)
                assert (got.headers["tenant"], got.headers["number"]) == ("eu", 5)
            listed = await asyncio.to_thread(command, "subscription", "list", "--json")
            assert len(listed.splitlines()) == 4
            assert "guest:guest" not in listed
        for name in "hcpr":
            assert (await stage.counts(name)).flow.acked == 1

    stage.play(story)


def test_a_missing_exchange_is_said_at_the_start(stage: Stage, tmp_path: Path) -> None:
    async def story() -> None:
        url = stage.url().replace(stage.exchange, "nope")
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bide",
            "rabbitmq",
            url,
            "--url",
            f"sqlite:///{stage.path}",
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await running.communicate()
        assert running.returncode == 2
        assert b"the exchange 'nope' does not exist on 127.0.0.1; declare it first" in told

    stage.play(story)


async def until_listed(stage: Stage) -> Any:
    """Return what `bide top` tells once the process that publishes has reported."""
    command = [
        sys.executable,
        "-m",
        "bide",
        "top",
        "--json",
        "--interval",
        "100ms",
        "--url",
        f"sqlite:///{stage.path}",
    ]
    top = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                assert top.stdout is not None
                told = json.loads(await top.stdout.readline())
                for worker in told["workers"]:
                    if worker["holder"].startswith("push:") and stage.exchange in worker["queues"]:
                        return told
    finally:
        top.kill()
        await top.wait()


async def until_listening(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the server never listens"
            await asyncio.sleep(0.05)


def ask(url: str, content: object) -> None:
    data, kind = json.dumps(content).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(url, data, kind, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        return str(page.read().decode())
