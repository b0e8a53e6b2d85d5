"""The processes of the demo: `python -m bide.cli.demo.processes shop|worker FOLDER ...`."""

import heapq
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from bide.cli.demo.journal import Journal
from bide.cli.demo.plan import LEASE, QUEUE, Order, Plan
from bide.model.message import NewMessage
from bide.queue.sync import Queue

__all__ = ["shop", "worker"]

BATCH = 25
"""How many orders a worker claims at a time."""
WORK = 0.002
"""How many seconds an order takes a worker: a call to the warehouse, say."""
TICK = 0.02
"""The shop gathers for so many seconds what it puts, and what it cancels, with one commit."""

Event = tuple[float, int, Order, bool]


def shop(queue: Queue, journal: Journal, plan: Plan, closing: threading.Event) -> None:
    """Put orders as they come and cancel their time-outs as they are paid; note every answer."""
    began = time.monotonic()
    numbers = count()
    events: list[Event] = [(order.opens, next(numbers), order, False) for order in plan.timeline()]
    heapq.heapify(events)
    while events and not closing.is_set():
        closing.wait(max(TICK, began + events[0][0] - time.monotonic()))
        now = time.monotonic() - began
        come: list[Order] = []
        paid: list[str] = []
        for order, pays in _until(now, events):
            if pays:
                paid.append(order.id)
            else:
                come.append(order)
                if order.pays is not None:
                    heapq.heappush(events, (order.pays, next(numbers), order, True))
        _put(queue, journal, come)
        if paid:
            outcomes = queue.cancel_many(paid)
            journal.write(["paid" if done else "too late", done.id] for done in outcomes)


def _until(now: float, events: list[Event]) -> Iterator[tuple[Order, bool]]:
    while events and events[0][0] <= now:
        _, _, order, pays = heapq.heappop(events)
        yield order, pays


def _put(queue: Queue, journal: Journal, come: list[Order]) -> None:
    messages = [
        NewMessage(body={"order": order.id}, id=order.id, delay=order.timeout) for order in come
    ]
    if not messages:
        return
    outcomes = queue.put_many(messages)
    rushes = {order.id for order in come if order.rush}
    journal.write(
        ["put", done.id, done.due or 0, *(["rush"] if done.id in rushes else [])]
        for done in outcomes
        if done
    )


def worker(queue: Queue, journal: Journal, closing: threading.Event) -> None:
    """Handle orders that timed out: note them, then work, then ack, then note the answers."""
    while not closing.is_set():
        deliveries = queue.claim(BATCH, wait=0.5, lease=LEASE)
        if not deliveries:
            continue
        now = time.time_ns() // 1_000_000
        journal.write(["handled", d.id, d.attempt, now - d.message.due] for d in deliveries)
        closing.wait(WORK * len(deliveries))
        journal.write(["acked", outcome.id] for outcome in queue.ack(deliveries) if outcome)


def _closing() -> threading.Event:
    """Return an event that is set when stdin closes, also by the death of whoever started us."""
    closing = threading.Event()

    def watch() -> None:
        while os.read(0, 1):
            pass
        closing.set()

    threading.Thread(target=watch, daemon=True).start()
    return closing


def main(role: str, name: str, folder: str, url: str, *size: str) -> None:
    """Be one of the processes."""
    journal = Journal(Path(folder) / f"{name}.jsonl")
    with Queue(QUEUE, url, holder=name) as queue:
        if role == "shop":
            orders, seconds, workers = size
            plan = Plan(int(orders), float(seconds), int(workers))
            shop(queue, journal, plan, _closing())
        else:
            worker(queue, journal, _closing())


if __name__ == "__main__":
    main(*sys.argv[1:])
