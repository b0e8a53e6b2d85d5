"""The processes of the demo, a shop and workers: `python -m bide.cli.demo.actors NAME ...`.

Each writes down what it did, to be compared with the store afterwards.
"""

import os
import random
import signal
import sys
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from bide.model.message import NewMessage
from bide.queue.sync import Queue
from bide.threads import Background

QUEUE = "orders"

LEASE = 2.0
"""Seconds without an ack after which a worker's orders go to another worker."""

PAID = 0.78
"""The share of the orders that is paid well in time."""
RACES = 0.04
"""The share that is paid within 10 ms of its timeout, before or after it."""
RUSHES = 4
"""At the end of each but the last of these parts, many orders come that time out together."""

BATCH = 10
"""The maximum number of orders that a worker claims at a time."""
ENOUGH = 3
"""The number of orders with which a worker is killed; after the last rush, 1 is enough."""
WORK = 0.002
"""Seconds of work for each order, such as a call to the warehouse."""
TICK = 0.02
"""Seconds for which the shop gathers puts and cancels for one commit."""


class Order(NamedTuple):
    """One customer's order; times are seconds from the beginning."""

    id: str
    opens: float
    timeout: float
    pays: float | None = None


class DemoPlan(NamedTuple):
    """The size of a demo: the number of orders, for how many seconds they come, and workers."""

    orders: int
    seconds: float
    workers: int

    @property
    def longest(self) -> float:
        """The longest timeout, in seconds."""
        return min(4.0, max(1.0, self.seconds / 2))

    @property
    def shortest(self) -> float:
        """The shortest timeout, in seconds."""
        return self.longest / 4

    @property
    def victim(self) -> str:
        """The worker that is killed."""
        return f"worker-{self.workers}"

    def timeline(self) -> Iterator[Order]:
        """Yield the orders in the order in which they come; the same ones each time."""
        chance = random.Random(1)
        part, together = self.orders // RUSHES, max(3, self.orders // 100)
        for number in range(self.orders):
            id, opens = f"order-{number + 1:05}", self.seconds * number / self.orders
            in_part = number % part
            if number >= part and in_part < together:
                yield Order(id, self.seconds * (number - in_part) / self.orders, self.shortest)
                continue
            timeout = chance.uniform(self.shortest, self.longest)
            fate = chance.random()
            pays = None
            if fate < PAID:
                pays = opens + timeout * chance.uniform(0.1, 0.95)
            elif fate < PAID + RACES:
                pays = opens + timeout + chance.uniform(-0.01, 0.01)
            yield Order(id, opens, timeout, pays)


Journal = Callable[[Iterable[list[str | int]]], object]
"""Appends rows to the file of a process. What was written survives a kill -9 of the process."""


def shop(queue: Queue, journal: Journal, plan: DemoPlan, closing: threading.Event) -> None:
    """Put orders as they come, cancel their timeouts as they are paid, and note every answer."""
    orders = list(plan.timeline())
    events = [(order.opens, order, False) for order in orders]
    events += [(order.pays, order, True) for order in orders if order.pays is not None]
    events.sort(key=lambda event: event[0])
    times, done, began = [at for at, _, _ in events], 0, time.monotonic()
    while done < len(events) and not closing.is_set():
        closing.wait(max(TICK, began + times[done] - time.monotonic()))
        end = bisect(times, time.monotonic() - began)
        now, done = events[done:end], end
        if opened := [order for _, order, pays in now if not pays]:
            new = [NewMessage({"order": o.id}, id=o.id, delay=o.timeout) for o in opened]
            journal(["put", outcome.id] for outcome in queue.put_many(new) if outcome)
        if paid := [order.id for _, order, pays in now if pays]:
            journal(
                ["paid" if outcome else "too_late", outcome.id]
                for outcome in queue.cancel_many(paid)
            )


def worker(
    queue: Queue, journal: Journal, plan: DemoPlan, closing: threading.Event, name: str
) -> None:
    """Handle orders that timed out: note them, then work, then ack, then note the answers.

    The victim kills itself when it holds at least `ENOUGH` orders, or after the last rush any.
    """
    began, fatal = time.monotonic(), plan.seconds / RUSHES + plan.shortest / 2
    while not closing.is_set():
        deliveries = queue.claim(BATCH, wait=0.5, lease=LEASE)
        if not deliveries:
            continue
        now = time.time_ns() // 1_000_000
        journal(["handled", d.id, d.attempt, now - d.message.due] for d in deliveries)
        age = time.monotonic() - began
        enough = len(deliveries) >= ENOUGH or age > plan.seconds
        if name == plan.victim and age > fatal and enough:
            os.kill(os.getpid(), signal.SIGKILL)
        closing.wait(WORK * len(deliveries))
        journal(["acked", outcome.id] for outcome in queue.ack(deliveries) if outcome)


def main(name: str, folder: str, url: str, orders: str, seconds: str, workers: str) -> None:
    """Run one of the processes until stdin ends."""
    plan, closing = DemoPlan(int(orders), float(seconds), int(workers)), threading.Event()
    encode = msgspec.json.Encoder().encode_lines

    def listen() -> None:
        os.read(0, 1)
        closing.set()

    Background("bide-demo", listen).ensure()
    with (
        Path(folder, f"{name}.jsonl").open("ab", buffering=0) as file,
        Queue(QUEUE, url, holder=name) as queue,
    ):

        def journal(rows: Iterable[list[str | int]]) -> None:
            file.write(encode(rows))

        if name == "shop":
            shop(queue, journal, plan, closing)
        else:
            worker(queue, journal, plan, closing, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
