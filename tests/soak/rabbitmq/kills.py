"""bide and the broker, killed with -9 under load. Run it longer than the suite does:

python -m tests.soak.rabbitmq.kills --seconds 60
"""

import argparse
import asyncio
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

import bide
from tests.system.rabbitmq.broker import Broker

__all__ = ["Result", "run"]

PATIENCE = 60.0
RATE = 60
"""Messages a second."""

SETTLES = 6.0
"""Seconds after which a quorum queue that was declared survives a `kill -9` of the broker."""


class Result(NamedTuple):
    """What came of it."""

    confirmed: int
    received: int
    cancelled: int
    kills: int
    twice: int
    wrong: list[str]
    """What must not be; empty if all went well."""


class Story:
    """Publishes, cancels, consumes and kills, each for itself."""

    def __init__(self, broker: Broker, folder: Path, seed: int, queue_type: str) -> None:
        self.broker = broker
        self.queue_type = queue_type
        self.url = f"sqlite:///{folder / 'bide.db'}"
        self.random = random.Random(seed)
        self.earliest: dict[str, float] = {}
        """By id: before this time it must not be received."""
        self.confirmed: dict[str, float] = {}
        self.received: dict[str, list[float]] = {}
        self.cancelled: dict[str, float] = {}
        self.killed: list[float] = []
        self.over = asyncio.Event()
        self._log = (folder / "log").open("wb")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start a process of bide."""
        arguments = ["rabbitmq", f"{self.broker.url}?exchange=x", "--queue-type", self.queue_type]
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "bide", *arguments, "--url", self.url],
                env=os.environ | {"BIDE_LOG_LEVEL": "warning"},
                stdout=self._log,
                stderr=self._log,
            )
        )

    async def declare(self) -> None:
        """Declare the exchange, and a queue for the consumer."""
        async with await aio_pika.connect(self.broker.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("x", durable=True)
            inbox = await channel.declare_queue(
                "inbox", durable=True, arguments={"x-queue-type": self.queue_type}
            )
            await inbox.bind(exchange, "k")

    async def publish(self) -> None:
        """Publish with confirms; what was not confirmed does not count."""
        number = 0
        while not self.over.is_set():
            try:
                async with await aio_pika.connect(self.broker.url) as connection:
                    channel = await connection.channel(on_return_raises=True)
                    exchange = await channel.get_exchange("x.delayed")
                    while not self.over.is_set():
                        number += 1
                        await self._send(exchange, str(number))
                        await asyncio.sleep(1 / RATE)
            except (OSError, RuntimeError, aio_pika.exceptions.AMQPError):
                await asyncio.sleep(0.1)

    async def _send(self, exchange: aio_pika.abc.AbstractExchange, id: str) -> None:
        delay = self.random.choice((0.2, 0.6, 4.0))
        self.earliest[id] = time.time() + delay
        message = aio_pika.Message(
            id.encode(),
            message_id=id,
            headers={"x-delay": round(delay * 1000)},
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await asyncio.wait_for(exchange.publish(message, "k"), 10)
        self.confirmed[id] = time.time()

    async def cancel(self) -> None:
        """Cancel every tenth message, two seconds after it was confirmed."""
        async with bide.AsyncQueue("x", self.url) as queue:
            done: set[str] = set()
            while not self.over.is_set():
                for id, at in list(self.confirmed.items()):
                    if int(id) % 10 == 0 and id not in done and time.time() - at > 2:
                        done.add(id)
                        if await queue.cancel(id):
                            self.cancelled[id] = time.time()
                await asyncio.sleep(0.1)

    async def consume(self) -> None:
        """Receive, and connect again when the broker is back."""

        async def come(message: AbstractIncomingMessage) -> None:
            self.received.setdefault(str(message.message_id), []).append(time.time())
            await message.ack()

        while True:
            try:
                async with await aio_pika.connect(self.broker.url) as connection:
                    channel = await connection.channel()
                    queue = await channel.get_queue("inbox")
                    lost = asyncio.Event()
                    connection.close_callbacks.add(lambda *_, lost=lost: lost.set())
                    await queue.consume(come)
                    await lost.wait()
            except (OSError, RuntimeError, aio_pika.exceptions.AMQPError):
                await asyncio.sleep(0.1)

    async def kill(self, seconds: float, every: float) -> None:
        """Kill bide again and again, and the broker now and then."""
        end, number = time.time() + seconds, 0
        while time.time() < end:
            await asyncio.sleep(self.random.uniform(0.3, 1.7) * every)
            number += 1
            self.killed.append(time.time())
            if number % 3 == 0:
                await asyncio.to_thread(self.broker.kill)
                await asyncio.to_thread(self.broker.start)
            else:
                victim = self._processes.pop(self.random.randrange(len(self._processes)))
                victim.kill()
                await asyncio.to_thread(victim.wait)
                self.start()

    def missing(self) -> set[str]:
        """Return what was confirmed, and neither received nor cancelled."""
        return self.confirmed.keys() - self.received.keys() - self.cancelled.keys()

    async def play(self, seconds: float, every: float) -> None:
        """Play the whole story."""
        await self.declare()
        for _ in range(2):
            self.start()
        others = [asyncio.create_task(it()) for it in (self.publish, self.cancel, self.consume)]
        try:
            while not self.received:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            if self.queue_type == "quorum":
                await asyncio.sleep(SETTLES)
            await self.kill(seconds, every)
            self.over.set()
            end = time.time() + PATIENCE
            while self.missing() and time.time() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
        finally:
            self.over.set()
            for one in others:
                one.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                await asyncio.to_thread(process.wait, PATIENCE)
            self._log.close()

    def result(self) -> Result:
        wrong = [f"{id} was lost" for id in self.missing()]
        twice = 0
        for id, times in self.received.items():
            sent = self.earliest.get(id, float("inf"))
            if times[0] < sent:
                wrong.append(f"{id} came {sent - times[0]:.3f} s early")
            if len(times) > 1:
                twice += 1
                if not self._explained(sent - 4, times[-1]):
                    wrong.append(f"{id} came {len(times)} times, and nothing was killed")
            # Once due, what was published without an answer can be cancelled in the store only.
            over = self.cancelled.get(id, float("inf"))
            if over < sent or (over < float("inf") and not self._explained(sent - 4, over)):
                wrong.append(f"{id} came though it was cancelled")
        with bide.Queue("x", self.url) as queue:
            audit = queue.audit()
            if not audit:
                wrong.append(f"the books do not balance: {audit.problems}")
        return Result(
            len(self.confirmed),
            len(self.received),
            len(self.cancelled),
            len(self.killed),
            twice,
            wrong,
        )

    def _explained(self, begin: float, end: float) -> bool:
        return any(begin <= at <= end for at in self.killed)


def run(
    broker: Broker,
    folder: Path,
    seconds: float,
    every: float,
    seed: int = 1,
    queue_type: str = "classic",
) -> Result:
    """Kill for so many seconds, once in `every` seconds on average."""

    async def whole() -> Story:
        story = Story(broker, folder, seed, queue_type)
        await story.play(seconds, every)
        return story

    return asyncio.run(whole()).result()


def main() -> int:
    """Kill for a while, say what came of it, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    parser.add_argument("--queue-type", choices=("quorum", "classic"), default="quorum")
    chosen = parser.parse_args()
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it lost its broker, as it should
    print(f"seed {chosen.seed}")
    with tempfile.TemporaryDirectory(prefix="bide-kills-") as name:
        folder = Path(name)
        broker = Broker(folder / "rabbitmq")
        try:
            result = run(broker, folder, chosen.seconds, 3, chosen.seed, chosen.queue_type)
        finally:
            broker.close()
    print(result)
    return int(bool(result.wrong))


if __name__ == "__main__":
    sys.exit(main())
