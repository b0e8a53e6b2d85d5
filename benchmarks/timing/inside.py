"""What bide itself could stand on: its own timers where the lane and the memory engine keep time.

The lane keeps the deadline of each claim that waits, and nearly all claims end before it. The
memory engine keeps what is delayed by rank, and pages through it too. Structures are measured bare,
without the locks of their faces: a lane has a lock of its own.
"""

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sortedcontainers import SortedList

from benchmarks.figure import Figure
from bide.timing import TimingWheel
from bide.timing.base import DelayHeap

__all__ = ["MEASUREMENTS"]

ROUNDS = 5
CLAIMS = 50_000
MESSAGES = 100_000

Enter = Callable[[float], Any]
Leave = Callable[[Any], object]


class _Ticket:
    """Stands for a claim."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: float = 0.0) -> None:
        self.deadline = deadline


def _sorted_list() -> tuple[Enter, Leave]:
    """As the lane has it."""
    tickets: SortedList[tuple[float, int, _Ticket]] = SortedList()

    def enter(deadline: float) -> _Ticket:
        ticket = _Ticket(deadline)
        tickets.add((deadline, id(ticket), ticket))
        return ticket

    def leave(ticket: _Ticket) -> None:
        tickets.remove((ticket.deadline, id(ticket), ticket))

    return enter, leave


def _delay_heap() -> tuple[Enter, Leave]:
    queue: DelayHeap[_Ticket] = DelayHeap()
    return lambda deadline: queue.add(_Ticket(), int(deadline * 1e9), 0), queue.remove


def lane_deadlines() -> Iterator[Figure]:
    """Claims that wait for half a minute at most and get something before: enter and leave."""
    with TimingWheel() as wheel:
        ways: dict[str, Callable[[], tuple[Enter, Leave]]] = {
            "SortedList": _sorted_list,
            "DelayHeap": _delay_heap,
            "TimingWheel": lambda: (partial(wheel.schedule, _Ticket), wheel.cancel),
        }
        for waiting in (200, 10_000):
            base = None
            for name, make in ways.items():
                value = statistics.median(_claims(*make(), waiting) for _ in range(ROUNDS))
                yield Figure(f"lane, {waiting:,} claims wait: {name}", value, "ns", limit=base)
                base = base or value


def _claims(enter: Enter, leave: Leave, waiting: int) -> float:
    choose = random.Random(1)
    deadlines = [30 + number / 10_000 + choose.random() for number in range(CLAIMS)]
    line = deque(enter(30.0) for _ in range(waiting))
    start = time.process_time_ns()
    for deadline in deadlines:
        line.append(enter(deadline))
        leave(line.popleft())
    spent = (time.process_time_ns() - start) / CLAIMS
    while line:
        leave(line.popleft())
    return spent


def memory_engine() -> Iterator[Figure]:
    """Messages due at random within an hour: put in, and taken out by moment."""
    choose = random.Random(1)
    dues = [int(1e9 * 3_600 * choose.random()) for _ in range(MESSAGES)]

    def delay_heap() -> float:
        queue: DelayHeap[None] = DelayHeap()
        start = time.process_time_ns()
        for due in dues:
            queue.add(None, due, 0)
        while queue.pop(10**14):
            pass
        return (time.process_time_ns() - start) / MESSAGES

    def ordered() -> float:
        rows: SortedList[tuple[int, int]] = SortedList()
        start = time.process_time_ns()
        for number, due in enumerate(dues):
            rows.add((due, number))
        while rows:
            rows.pop(0)
        return (time.process_time_ns() - start) / MESSAGES

    base = statistics.median(ordered() for _ in range(ROUNDS))
    value = statistics.median(delay_heap() for _ in range(ROUNDS))
    yield Figure("memory engine, in and out: SortedList", base, "ns")
    yield Figure("memory engine, in and out: DelayHeap", value, "ns", limit=base)


MEASUREMENTS = (lane_deadlines, memory_engine)
