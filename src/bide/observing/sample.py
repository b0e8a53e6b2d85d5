"""Samples of a store: how many messages are where, who works on them, and how late they are."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from bide.model.commands import Command, Count, Scan
from bide.model.message import Message
from bide.model.replies import Counts, Page, Reply
from bide.observing.heartbeat import read, together
from bide.observing.tally import Histogram

__all__ = ["Lateness", "Sample", "Worker", "answered", "look"]

R = TypeVar("R")

HELD_MOST = 1_000
"""How many held messages of a queue are looked at for each sample."""

REMEMBER = 60.0
"""For how many seconds a worker is listed after it was last heard of."""


class Worker(msgspec.Struct):
    """Who holds messages, or says that they are at work."""

    holder: str
    """The name under which it claims."""
    held: dict[str, int] = {}
    """How many messages of each queue that it holds or works on."""
    until: int | None = None
    """When the first of its leases lapses, in Unix milliseconds."""
    silent: int | None = None
    """For how many milliseconds it has been overdue to say that it is there."""
    seen: float = 0.0
    """When it was last known to be there, by the clock of the sample."""

    @property
    def holds(self) -> int:
        """How many messages it holds."""
        return sum(self.held.values())


class Lateness(msgspec.Struct, frozen=True):
    """How late deliveries began that were begun within the last minute, in seconds.

    A quantile is the upper bound of the bucket in which it lies: so late at most. `None`: later
    than the last bound, which is half an hour.
    """

    p50: float | None
    p99: float | None
    count: int
    """How many deliveries that is of."""

    @classmethod
    def of(cls, histogram: Histogram) -> "Lateness":
        """Return what a histogram says."""
        median, most = (histogram.quantile(share) for share in (0.5, 0.99))
        return cls(_finite(median), _finite(most), histogram.count)


class Sample(msgspec.Struct, frozen=True):
    """A store at one moment."""

    moment: float
    """In seconds, by a clock that only compares samples."""
    queues: dict[str, Counts]
    workers: dict[str, Worker] = {}
    lateness: dict[str, Lateness] = {}
    """By queue, where workers have told of any."""
    partly: bool = False
    """Whether some queue has more held messages than were looked at."""


Looking = Generator[Command, Any, R]
"""Yields commands, is sent their replies, and returns what they tell."""


def answered(steps: Looking[R], ask: Callable[[Command], Reply]) -> R:
    """Have each command of some steps carried out; return what they return."""
    try:
        command = next(steps)
        while True:
            command = steps.send(ask(command))
    except StopIteration as done:
        found: R = done.value
        return found


def look(
    queues: Iterable[str],
    registers: Iterable[str],
    moment: float,
    now: int,
    wanted: Callable[[str], object] = lambda queue: True,
    present: Mapping[str, Collection[str]] | None = None,
) -> Looking[Sample]:
    """Look at queues once: a count of each, and who works on them.

    Args:
        queues: which.
        registers: where workers say that they are there; see `bide.observing.heartbeat`.
        moment: of the sample.
        now: by the store's clock, in Unix milliseconds.
        wanted: tells of which queues workers are to be told, were they ever put to or not.
        present: who is known to be there besides, and on which queues.
    """
    found: dict[str, Counts] = {}
    workers: dict[str, Worker] = {}
    partly = False
    for queue in queues:
        counts = found[queue] = yield Count(queue)
        if counts.sizes.leased:
            page: Page = yield Scan(queue, "leased", limit=HELD_MOST)
            partly = partly or page.cursor is not None
            _held(page.messages, workers, moment)
    for holder, works_on in (present or {}).items():
        _present(holder, filter(wanted, works_on), None, workers, moment)
    rolls = []
    for register in registers:
        page = yield Scan(register, "next", limit=HELD_MOST)
        for message in page.messages:
            silent = now - message.due if message.state == "ready" else None
            roll = read(message)
            if roll is None or (silent is not None and silent > REMEMBER * 1000):
                continue
            if silent is None:
                rolls.append(roll)
            for holder, works_on in roll.workers.items():
                _present(holder, filter(wanted, works_on), silent, workers, moment)
    lateness = {
        queue: Lateness.of(histogram)
        for queue, histogram in together(rolls).items()
        if wanted(queue)
    }
    return Sample(moment, found, workers, lateness, partly)


def _held(messages: Iterable[Message], workers: dict[str, Worker], moment: float) -> None:
    for message in messages:
        name = message.holder or ""
        worker = workers.setdefault(name, Worker(name, seen=moment))
        worker.held[message.queue] = worker.held.get(message.queue, 0) + 1
        if message.until is not None:
            worker.until = min(message.until, worker.until or message.until)


def _present(
    holder: str,
    queues: Iterable[str],
    silent: int | None,
    workers: dict[str, Worker],
    moment: float,
) -> None:
    named = sorted(queues)
    if not named:
        return  # it works on others alone
    worker = workers.setdefault(holder, Worker(holder, seen=moment - (silent or 0) / 1000))
    worker.silent = silent if worker.seen < moment else None
    worker.held = dict.fromkeys(named, 0) | worker.held


def _finite(value: float | None) -> float | None:
    return None if value == float("inf") else value
