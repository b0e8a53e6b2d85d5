"""The whole way: into RabbitMQ with a delay, cancelled or moved in the store, and out again."""

import asyncio
import os
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import pytest

import bide
from tests.rabbitmq.stage import PATIENCE, Stage
from tests.servers import free_port

FACES = {
    "rabbitmq": ["rabbitmq", "--metrics", "127.0.0.1:{port}"],
    "serve": ["serve", "--port", "{port}"],
    "worker": ["worker", "app:app", "--metrics", "127.0.0.1:{port}"],
}


@asynccontextmanager
async def process(stage: Stage, face: str, port: int, folder: Path) -> AsyncIterator[None]:
    """Run a command of bide that takes in the messages of the stage's exchange."""
    (folder / "app.py").write_text("import bide\napp = bide.App()\n"
                                   "@app.handler('other')\ndef other(body): ...\n")  # fmt: skip
    environment = os.environ | {
        "BIDE_URL": f"sqlite:///{stage.path}", "BIDE_RABBITMQ": stage.url(),
        "BIDE_LOG_LEVEL": "debug",
    }  # fmt: skip
    with (folder / "log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bide", *[word.format(port=port) for word in FACES[face]],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
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
            if face != "worker":
                page = await asyncio.to_thread(metrics, port)
                labels = f'exchange="{stage.exchange}"'
                assert f'bide_rabbitmq_messages_total{{{labels},outcome="stored"}} 4.0' in page
                assert f"bide_rabbitmq_connected{{{labels}}} 1.0" in page
                assert 'bide_push_deliveries_total{outcome="acked"' in page
        flow = (await stage.counts()).flow
        assert (flow.put, flow.acked, flow.cancelled) == (4, 2, 1)

    stage.play(story)


def test_a_missing_exchange_is_said_at_the_start(stage: Stage, tmp_path: Path) -> None:
    async def story() -> None:
        url = stage.url().replace(stage.exchange, "nope")
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bide", "rabbitmq", url, "--url", f"sqlite:///{stage.path}",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, told = await running.communicate()
        assert running.returncode == 2
        assert b"the exchange 'nope' does not exist on 127.0.0.1; declare it first" in told

    stage.play(story)


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return str(page.read().decode())
