"""The processes of the demo, a shop and workers: `python -m bide.cli.demo.actors shop|worker ...`.

Each writes down what it did, to be compared with the store afterwards.
"""

import heapq
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Self

import msgspec

from bide.model.message import NewMessage
from bide.queue.sync import Queue

QUEUE = "orders"

LEASE = 2.0
"""Seconds without an ack after which a worker's orders go to another worker."""

PAID = 0.78
"""The share of the orders that is paid well in time."""
RACES = 0.04
"""The share that is paid within 10 ms of its timeout, before or after it."""
RUSHES = (0.4, 0.55, 0.7)
"""When, as parts of the whole time, many orders come that all time out at the same moment."""

BATCH = 10
"""The maximum number of orders that a worker claims at a time."""
WORK = 0.002
"""Seconds of work for each order, such as a call to the warehouse."""
TICK = 0.02
"""Seconds for which the shop gathers puts and cancels for one commit."""

Row = list[str | int]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode_lines


@dataclass(frozen=True)
class Order:
    """One customer's order; times are seconds from the beginning."""

    id: str
    opens: float
    timeout: float
    pays: float | None = None
    rush: bool = False


@dataclass(frozen=True)
class Plan:
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

    def timeline(self) -> Iterator[Order]:
        """Yield the orders in the order in which they come; the same ones each time."""
        chance = random.Random(1)
        rush_size = max(3, self.orders // 100)
        rushes = [int(part * self.orders) for part in RUSHES]
        for number in range(self.orders):
            id, opens = f"order-{number + 1:05}", self.seconds * number / self.orders
            rush = next((first for first in rushes if first <= number < first + rush_size), None)
            if rush is not None:
                yield Order(id, self.seconds * rush / self.orders, self.shortest, rush=True)
                continue
            timeout = chance.uniform(self.shortest, self.longest)
            fate = chance.random()
            pays = None
            if fate < PAID:
                pays = opens + timeout * chance.uniform(0.1, 0.95)
            elif fate < PAID + RACES:
                pays = opens + timeout + chance.uniform(-0.01, 0.01)
            yield Order(id, opens, timeout, pays)


@dataclass(frozen=True)
class Handling:
    """One order, handled by one worker."""

    worker: str
    id: str
    attempt: int
    late: int
    """Milliseconds from the order's due time to the start of its handling."""


@dataclass
class Records:
    """Everything that the processes have written down."""

    put: list[str] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)
    """Cancels that were confirmed."""
    too_late: list[str] = field(default_factory=list)
    """Cancels that were refused."""
    handled: list[Handling] = field(default_factory=list)
    """Written before the ack, so that a handling is known even if its worker is killed."""
    acked: list[str] = field(default_factory=list)
    """Acks that were confirmed."""
    positions: dict[Path, int] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the journals of a demo's folder."""
        records = cls()
        records.update(folder)
        return records

    def update(self, folder: Path) -> None:
        """Read what the journals have more than at the last call, without a torn last line."""
        for path in sorted(folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self.positions.get(path, 0))
                for line in file:
                    if line.endswith(b"\n"):
                        self.positions[path] = self.positions.get(path, 0) + len(line)
                        self._add(path.stem, *_decode(line))

    def _add(self, writer: str, what: str, id: str, *more: int) -> None:
        if what == "handled":
            self.handled.append(Handling(writer, id, *more))
        else:
            getattr(self, what.replace(" ", "_")).append(id)

    def first_lateness(self, worker: str | None = None) -> list[int]:
        """Return how late first attempts began, sorted. A redelivery is late by its lease."""
        return sorted(
            one.late for one in self.handled if one.attempt == 1 and worker in (None, one.worker)
        )


class Journal:
    """A file that one process appends to; what was written survives a kill -9 of the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows in one system call."""
        os.write(self._file, _encode(rows))


class Stdin(threading.Thread):
    """Reads what the stage says: a digit, or the end of the process when it closes the pipe."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.closing = threading.Event()
        self.die_with: int | None = None
        """The number of orders with which this worker kills itself."""

    def run(self) -> None:
        """Read until the end."""
        while said := os.read(0, 1):
            self.die_with = int(said)
        self.closing.set()


def shop(queue: Queue, journal: Journal, plan: Plan, closing: threading.Event) -> None:
    """Put orders as they come, cancel their timeouts as they are paid, and note every answer."""
    began, numbers = time.monotonic(), count()
    events = [(order.opens, next(numbers), order, False) for order in plan.timeline()]
    while events and not closing.is_set():
        closing.wait(max(TICK, began + events[0][0] - time.monotonic()))
        now = time.monotonic() - began
        new: list[Order] = []
        paid: list[str] = []
        while events and events[0][0] <= now:
            _, _, order, pays = heapq.heappop(events)
            if pays:
                paid.append(order.id)
                continue
            new.append(order)
            if order.pays is not None:
                heapq.heappush(events, (order.pays, next(numbers), order, True))
        if new:
            messages = [NewMessage({"order": o.id}, id=o.id, delay=o.timeout) for o in new]
            journal.write(["put", done.id] for done in queue.put_many(messages) if done)
        if paid:
            outcomes = queue.cancel_many(paid)
            journal.write(["paid" if done else "too late", done.id] for done in outcomes)


def worker(queue: Queue, journal: Journal, stdin: Stdin) -> None:
    """Handle orders that timed out: note them, then work, then ack, then note the answers."""
    while not stdin.closing.is_set():
        deliveries = queue.claim(BATCH, wait=0.5, lease=LEASE)
        if not deliveries:
            continue
        now = time.time_ns() // 1_000_000
        journal.write(["handled", d.id, d.attempt, now - d.message.due] for d in deliveries)
        if stdin.die_with is not None and len(deliveries) >= stdin.die_with:
            os.kill(os.getpid(), signal.SIGKILL)
        stdin.closing.wait(WORK * len(deliveries))
        journal.write(["acked", outcome.id] for outcome in queue.ack(deliveries) if outcome)


def main(role: str, name: str, folder: str, url: str, *size: str) -> None:
    """Be one of the processes."""
    journal = Journal(Path(folder) / f"{name}.jsonl")
    stdin = Stdin()
    stdin.start()
    with Queue(QUEUE, url, holder=name) as queue:
        if role == "shop":
            orders, seconds, workers = size
            shop(queue, journal, Plan(int(orders), float(seconds), int(workers)), stdin.closing)
        else:
            worker(queue, journal, stdin)


if __name__ == "__main__":
    main(*sys.argv[1:])
