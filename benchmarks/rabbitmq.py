"""RabbitMQ as target and intake, beside aio-pika alone: one node, quorum queues, SQLite."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import aio_pika
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel

import bide
from benchmarks.figure import Figure, paired
from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription
from tests.system.rabbitmq.broker import Broker

__all__ = ["run"]

BODY = b"x" * 256
COUNT, WINDOW, ROUNDS = 20_000, 500, 3
RATE, SECONDS = 200, 6
FAR, NEAR = 10_000, 20
PENDING = 1_000_000

CONSUMER = """
import asyncio, sys, time, aio_pika
async def main():
    left = int(sys.argv[3])
    over = asyncio.get_running_loop().create_future()
    async def come(message):
        nonlocal left
        due = message.headers.get("bide-due")
        if due:
            print(time.time() * 1000 - due)
        await message.ack()
        left -= 1
        if not left:
            over.set_result(time.time())
    connection = await aio_pika.connect(sys.argv[1])
    channel = await connection.channel()
    await channel.set_qos(500)
    await (await channel.get_queue(sys.argv[2])).consume(come)
    print("ready", flush=True)
    print("over", await over, flush=True)
    await connection.close()
asyncio.run(main())
"""


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    with tempfile.TemporaryDirectory(prefix="bide-bench-") as folder:
        broker = Broker(Path(folder) / "rabbitmq")
        try:
            for measurement in (out, taken, lateness, near, pending):
                if only in measurement.__name__:
                    yield from measurement(broker, Path(folder))
        finally:
            broker.close()


def out(broker: Broker, folder: Path) -> Iterator[Figure]:
    """Messages that are due at one instant, until the consumer has the last."""
    names = map(str, count())

    async def raw() -> float:
        name = f"raw-{next(names)}"
        async with channel_of(broker, name) as channel:
            with consumer(broker, name, COUNT) as over:
                began = time.time()
                await publish(channel, name, COUNT)
                return COUNT / ((await asyncio.to_thread(over))[0] - began)

    def ours() -> float:
        name = f"out-{next(names)}"
        url = store(folder, name)
        asyncio.run(declare(broker, name))
        subscribe(url, broker, name)
        due = time.time() + 6
        with bide.Queue("q", url) as queue:
            for _ in range(COUNT // 1_000):
                queue.put_many([bide.NewMessage(BODY, at=due)] * 1_000)
        with (
            process("push", url, "--allow-network", "127.0.0.1"),
            consumer(broker, name, COUNT) as over,
        ):
            return COUNT / (over()[0] - due)

    value, limit, ratio = paired(ROUNDS, ours, lambda: asyncio.run(raw()))
    yield Figure("out: 20 k due at one instant", value, "/s", limit, ratio, "≥ 60 %", ratio >= 0.6)


def taken(broker: Broker, folder: Path) -> Iterator[Figure]:
    """Messages with a delay, from a full queue into the store."""
    names = map(str, count())

    async def fill(name: str, **arguments: str) -> None:
        async with channel_of(broker, name, **arguments) as channel:
            await publish(channel, name, COUNT, headers={"x-delay": 3_600_000})

    def raw() -> float:
        name = f"raw-{next(names)}"
        asyncio.run(fill(name))
        began = time.time()
        with consumer(broker, name, COUNT) as over:
            return COUNT / (over()[0] - began)

    def ours() -> float:
        name = f"in-{next(names)}"
        asyncio.run(declare_exchange(broker, name))
        dead = {"x-dead-letter-exchange": f"{name}.delayed.dead"}
        asyncio.run(fill(f"{name}.delayed", **dead))
        url = store(folder, name)
        began = time.time()
        target = f"{broker.url}?exchange={name}"
        with process("rabbitmq", url, target), bide.Queue(name, url) as queue:
            while queue.counts().sizes.delayed < COUNT:
                time.sleep(0.02)
            return COUNT / (time.time() - began)

    value, limit, ratio = paired(ROUNDS, ours, raw)
    yield Figure(
        "in: messages with x-delay stored", value, "/s", limit, ratio, "≥ 50 %", ratio >= 0.5
    )


def lateness(broker: Broker, folder: Path) -> Iterator[Figure]:
    """Messages at an even pace: from the due time until the consumer has them."""
    parts: list[list[float]] = [[], []]
    for number in range(ROUNDS):  # in turn: the machine is as busy for both
        parts[0] += delivered(broker, folder, f"pace-{number}", far=0, count=RATE * SECONDS)
        parts[1] += asyncio.run(timed(broker, f"floor-{number}", RATE * SECONDS))
    for share, most in ((0.5, 4.0), (0.99, 15.0)):
        value, limit = (sorted(part)[int(len(part) * share)] for part in parts)
        yield Figure(
            f"lateness at 200/s, p{share * 100:.0f}",
            value,
            "ms",
            limit,
            goal=f"< {most:.0f} ms",
            met=value < most,
        )


async def timed(broker: Broker, name: str, count: int) -> list[float]:
    """Return how late messages are that aio-pika alone publishes when they are due."""
    async with channel_of(broker, name) as channel:
        with consumer(broker, name, count) as over:
            begin, publishing = time.time() + 1, []
            for number in range(count):
                due = begin + number / RATE
                await asyncio.sleep(due - time.time())
                message = Message(
                    BODY,
                    delivery_mode=DeliveryMode.PERSISTENT,
                    headers={"bide-due": int(due * 1000)},
                )
                sent = channel.default_exchange.publish(message, name)
                publishing.append(asyncio.ensure_future(sent))
            await asyncio.gather(*publishing)
            return (await asyncio.to_thread(over))[1:]


def near(broker: Broker, folder: Path) -> Iterator[Figure]:
    """The same, with messages before them that are due much later."""
    parts: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        for part, far in zip(parts, (0, FAR), strict=True):
            got = delivered(broker, folder, f"near-{far}-{number}", far=far, count=NEAR, rate=10)
            part.append(statistics.median(got))
    alone, late = map(statistics.median, parts)
    yield Figure(
        "lateness of 20 behind 10 k far ones, p50", late, "ms", alone, goal="that without them"
    )


def pending(broker: Broker, folder: Path) -> Iterator[Figure]:
    """A million messages that wait: what that costs the broker and bide."""

    def memory() -> float:
        text = broker.ctl("eval", "erlang:garbage_collect(), erlang:memory(total).")
        return int(text) / 1e6

    url = store(folder, "pending")
    asyncio.run(declare(broker, "pending"))
    subscribe(url, broker, "pending")
    before = memory()
    with bide.Queue("q", url) as queue:
        for _ in range(PENDING // 10_000):
            queue.put_many([bide.NewMessage(BODY, delay=86_400)] * 10_000)
    with process("push", url, "--allow-network", "127.0.0.1") as running:
        time.sleep(5)
        status = Path(f"/proc/{running.pid}/status").read_text()
        used = int(status.split("VmRSS:")[1].split()[0]) / 1e3
    yield Figure("1 M pending: memory of bide", used, "MB", goal="< 80 MB", met=used < 80)
    yield Figure("1 M pending: RabbitMQ's memory grows by", memory() - before, "MB")


def delivered(
    broker: Broker, folder: Path, name: str, far: int, count: int, rate: int = RATE
) -> list[float]:
    """Return how late messages were that are due at an even pace, in milliseconds."""
    url = store(folder, name)
    asyncio.run(declare(broker, name))
    subscribe(url, broker, name)
    with bide.Queue("q", url) as queue:
        if far:
            queue.put_many([bide.NewMessage(BODY, delay=3_600)] * far)
        begin = time.time() + 4
        queue.put_many([bide.NewMessage(BODY, at=begin + n / rate) for n in range(count)])
    with (
        process("push", url, "--allow-network", "127.0.0.1"),
        consumer(broker, name, count) as over,
    ):
        return over()[1:]


def store(folder: Path, name: str) -> str:
    """Return the URL of an empty store."""
    return f"sqlite:///{folder / name}.db"


def subscribe(url: str, broker: Broker, queue: str) -> None:
    """Have the messages of the queue "q" published to a queue of the broker."""
    lane = open_lane(url)
    target = Subscription(name="s", queue="q", url=f"{broker.url}?key={queue}", concurrency=WINDOW)
    asyncio.run(_kept(Records(lane, SYSTEM_CLOCK), target))
    close_lane(lane)


async def _kept(records: Records, subscription: Subscription) -> None:
    await records.put(subscription)


async def declare(broker: Broker, queue: str) -> None:
    """Declare a quorum queue."""
    async with channel_of(broker, queue):
        pass


async def declare_exchange(broker: Broker, name: str) -> None:
    """Declare an exchange."""
    async with await aio_pika.connect(broker.url) as connection:
        await (await connection.channel()).declare_exchange(name, durable=True)


@asynccontextmanager
async def channel_of(
    broker: Broker, queue: str, **arguments: str
) -> AsyncIterator[AbstractChannel]:
    """Provide a channel, with a quorum queue declared."""
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        kind: dict[str, str] = {"x-queue-type": "quorum", **arguments}
        await channel.declare_queue(queue, durable=True, arguments=dict(kind))
        yield channel


async def publish(
    channel: AbstractChannel, queue: str, many: int, headers: dict[str, int] | None = None
) -> None:
    """Publish with confirms, so many in flight as bide has."""
    window = asyncio.Semaphore(WINDOW)

    async def one(number: int) -> None:
        async with window:
            message = Message(
                BODY,
                message_id=str(number),
                delivery_mode=DeliveryMode.PERSISTENT,
                headers=dict(headers or {}),
            )
            await channel.default_exchange.publish(message, queue)

    await asyncio.gather(*[one(number) for number in range(many)])


@contextmanager
def consumer(broker: Broker, queue: str, count: int) -> "Iterator[_Over]":
    """Run a consumer in a process of its own; it has begun."""
    running = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, broker.url, queue, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        over = _Over(running)
        yield over
    finally:
        running.terminate()
        running.wait()


class _Over:
    """Waits for the end of a consumer; returns when it was, and how late messages were."""

    def __init__(self, running: "subprocess.Popen[str]") -> None:
        assert running.stdout is not None
        self._lines = running.stdout
        assert self._lines.readline() == "ready\n"

    def __call__(self) -> list[float]:
        late: list[float] = []
        for line in self._lines:
            if line.startswith("over "):
                return [float(line.split()[1]), *late]
            late.append(float(line))
        raise RuntimeError("the consumer has failed")


@contextmanager
def process(command: str, url: str, *more: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a command of bide on a store."""
    running = subprocess.Popen(
        [sys.executable, "-m", "bide", command, *more, "--log-level", "error"],
        env=os.environ | {"BIDE_URL": url},
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait()
