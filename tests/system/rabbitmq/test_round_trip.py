"""The whole way: in with a delay, cancelled or moved in the store, and out again; by programs."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import kombu
import pytest
from celery import Celery

import bide
from bide.contrib.celery import install
from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.targets.amqp import parse
from bide.targets.pusher import Pusher
from bide.testing import ScratchStore, WorkerFactory
from examples.rabbitmq import four_ways, shop
from tests.effort import one_in
from tests.servers import free_port
from tests.soak.rabbitmq.kills import run
from tests.system.rabbitmq.broker import Broker
from tests.system.rabbitmq.environment import PATIENCE, Stage, until

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


@pytest.mark.parametrize("face", one_in(3, FACES))
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


def test_an_order_times_out_once_and_at_no_other_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shop, "BROKER", broker.url)
    printed: list[str] = []

    def has_printed() -> bool:
        printed.append(capsys.readouterr().out)
        return any(printed)

    async def story() -> None:
        await shop.declare()
        lane = Lane(MemoryEngine)
        pusher = Pusher(lane, intakes=[parse(f"{broker.url}?exchange=shop")])
        enough = asyncio.Event()
        pushing = asyncio.create_task(pusher.run(5))
        consuming = asyncio.create_task(shop.consume(enough))
        await until(lambda: any(one.connected for one in pusher.sent.taken.values()))
        await shop.order(41, 0.3)
        await shop.order(42, 3600)
        await until(has_printed)
        pushing.cancel()
        enough.set()
        await asyncio.gather(pushing, consuming, return_exceptions=True)
        lane.close()

    asyncio.run(story())
    assert [text for text in printed if text] == ['order-41 timed out: {"order": 41}\n']


@pytest.mark.full
def test_the_four_ways_differ_as_the_documentation_says(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER", broker.url)
    monkeypatch.setattr(four_ways, "FAR", 3.0)
    monkeypatch.setattr(four_ways, "NEAR", 0.7)
    ttl, cascade, ours = asyncio.run(four_ways.main())
    assert ttl.overtaken == 0  # blocked by the message at the head of the queue
    assert cascade.overtaken == ours.overtaken == four_ways.COUNT
    assert min(cascade.late) > 0.25  # rounded up to whole seconds
    assert min(ours.late) >= 0


library: Any = kombu  # it has no annotations


@pytest.fixture
def app(broker: Broker) -> Iterator[Any]:
    name = f"shop-{secrets.token_hex(4)}"
    app = Celery("shop", broker=broker.url, set_as_current=False)
    # A quorum queue on a topic exchange: Celery itself would send a countdown through 28 queues.
    arguments = {"x-queue-type": "quorum"}
    exchange = library.Exchange(name, type="topic")
    app.conf.task_queues = [
        library.Queue(name, exchange, routing_key=name, queue_arguments=arguments)
    ]
    app.conf.task_default_queue = app.conf.task_default_exchange = name
    app.conf.task_default_routing_key = name
    install(app, "memory://celery-on-rabbitmq")
    yield app
    app.close()


def test_a_task_waits_in_bide_and_is_published_with_a_confirm(
    app: Any, bide_store: ScratchStore, bide_worker: WorkerFactory
) -> None:
    worker = bide_worker(app.__bide_app__())
    app.send_task("shop.expire", (42,), countdown=60, expires=3600, task_id="expire-42")
    waiting = bide_store.assert_put("celery", delay="1m", id="expire-42").body
    name = app.conf.task_default_queue
    assert (waiting["exchange"], waiting["routing_key"]) == (name, name)
    worker.advance("1m")
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[name].bind(connection.default_channel)
        message = queue.get(no_ack=True)
        assert queue.get() is None
        queue.delete()
    assert message.headers["id"] == "expire-42"
    assert message.headers["eta"] is None
    assert message.payload[0] == [42]
    assert 0 < int(message.properties["expiration"]) <= 3_600_000


def test_an_exchange_that_is_missing_is_a_failed_attempt_and_no_outage(
    app: Any, bide_store: ScratchStore, bide_worker: WorkerFactory
) -> None:
    worker = bide_worker(app.__bide_app__())
    app.send_task("shop.expire", countdown=60, exchange="nowhere", routing_key="k", task_id="a")
    with pytest.raises(Exception, match="nowhere"):
        worker.advance("1m")
    [message] = bide_store.pending("celery")
    assert message.attempt == 1
    assert "no exchange 'nowhere'" in (message.error or "")


@pytest.mark.full  # `make soak` runs the long form
@pytest.mark.process
def test_kills_lose_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "rabbitmq")
    try:
        result = run(broker, tmp_path, 4, 1.5)
    finally:
        broker.close()
    assert result.wrong == [], (tmp_path / "log").read_text()
    assert result.confirmed > 10
    assert result.kills >= 2
