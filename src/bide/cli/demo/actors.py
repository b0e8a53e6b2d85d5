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

LEASE_SECONDS = 2.0
"""Seconds without an ack after which a worker's orders go to another worker."""

PAID_SHARE = 0.78
"""The share of the orders that is paid well in time."""
RACES_SHARE = 0.04
"""The share that is paid within 10 ms of its timeout, before or after it."""
RUSHES = 4
"""At the end of each but the last of these parts, many orders come that time out rush_size."""

CLAIM_COUNT = 10
"""The maximum number of orders that a worker claims at a time."""
FATAL_COUNT = 3
"""The number of orders with which a worker is killed; after the last rush, 1 is enough."""
WORK_SECONDS = 0.002
"""Seconds of work for each order, such as a call to the warehouse."""
TICK_SECONDS = 0.02
"""Seconds for which the shop gathers puts and cancels for one commit."""


class Order(NamedTuple):
    """One customer's order; times are seconds from the beginning."""

    id: str
    opens: float
    """When it is put."""
    timeout: float
    """How long after that it times out."""
    pays: float | None = None
    """When it is paid; `None`: never."""


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
        generator = random.Random(1)
        part_size, rush_size = self.orders // RUSHES, max(3, self.orders // 100)
        for number in range(self.orders):
            id = f"order-{number + 1:05}"
            place_in_part = number % part_size
            if number >= part_size and place_in_part < rush_size:
                # All orders of a rush come when the first of them does, and nobody pays them.
                first = number - place_in_part
                yield Order(id, self.seconds * first / self.orders, self.shortest)
                continue
            opens = self.seconds * number / self.orders
            timeout = generator.uniform(self.shortest, self.longest)
            fate = generator.random()
            pays = None
            if fate < PAID_SHARE:
                pays = opens + timeout * generator.uniform(0.1, 0.95)
            elif fate < PAID_SHARE + RACES_SHARE:
                pays = opens + timeout + generator.uniform(-0.01, 0.01)
            yield Order(id, opens, timeout, pays)


Journal = Callable[[Iterable[list[str | int]]], object]
"""Appends rows to the file of a process. What was written survives a kill -9 of the process."""


class ShopEvent(NamedTuple):
    """What a customer does: opens an order, or pays it."""

    at: float
    """Seconds from the beginning."""
    order: Order
    pays: bool


def shop(queue: Queue, journal: Journal, plan: DemoPlan, closing: threading.Event) -> None:
    """Put orders as they come, cancel their timeouts as they are paid, and note every answer."""
    events: list[ShopEvent] = []
    for order in plan.timeline():
        events.append(ShopEvent(order.opens, order, pays=False))
        if order.pays is not None:
            events.append(ShopEvent(order.pays, order, pays=True))
    events.sort(key=lambda event: event.at)
    times = [event.at for event in events]
    next_event = 0
    began = time.monotonic()
    while next_event < len(events) and not closing.is_set():
        closing.wait(max(TICK_SECONDS, began + times[next_event] - time.monotonic()))
        end = bisect(times, time.monotonic() - began)
        happened, next_event = events[next_event:end], end
        if opened := [event.order for event in happened if not event.pays]:
            messages = [
                NewMessage({"order": order.id}, id=order.id, delay=order.timeout)
                for order in opened
            ]
            journal(["put", outcome.id] for outcome in queue.put_many(messages) if outcome)
        if paid_ids := [event.order.id for event in happened if event.pays]:
            journal(
                ["paid" if outcome else "too_late", outcome.id]
                for outcome in queue.cancel_many(paid_ids)
            )


def worker(
    queue: Queue, journal: Journal, plan: DemoPlan, closing: threading.Event, name: str
) -> None:
    """Handle orders that timed out: note them, then work, then ack, then note the answers.

    The victim kills itself when it holds at least `FATAL_COUNT` orders, or after the last rush any.
    """
    began = time.monotonic()
    fatal_age = plan.seconds / RUSHES + plan.shortest / 2  # in seconds: after the first rush began
    while not closing.is_set():
        deliveries = queue.claim(CLAIM_COUNT, wait=0.5, lease=LEASE_SECONDS)
        if not deliveries:
            continue
        now = time.time_ns() // 1_000_000
        journal(
            ["handled", delivery.id, delivery.attempt, now - delivery.message.due]
            for delivery in deliveries
        )
        age = time.monotonic() - began
        holds_enough = len(deliveries) >= FATAL_COUNT or age > plan.seconds
        if name == plan.victim and age > fatal_age and holds_enough:
            os.kill(os.getpid(), signal.SIGKILL)
        closing.wait(WORK_SECONDS * len(deliveries))
        journal(["acked", outcome.id] for outcome in queue.ack(deliveries) if outcome)


def main(name: str, folder: str, url: str, orders: str, seconds: str, workers: str) -> None:
    """Run one of the processes until stdin ends."""
    plan, closing = DemoPlan(int(orders), float(seconds), int(workers)), threading.Event()
    encode = msgspec.json.Encoder().encode_lines

    def wait_for_end_of_stdin() -> None:
        os.read(0, 1)
        closing.set()

    Background("bide-demo", wait_for_end_of_stdin).ensure()
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
