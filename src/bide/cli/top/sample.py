"""What `bide top` knows: samples of the queues and of who holds messages, and what lies between."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from bide.model.commands import Command, Count, Scan
from bide.model.replies import Counts, Page

__all__ = ["Rates", "Sample", "Worker", "Workers", "rates", "take"]

R = TypeVar("R")
Ask = Callable[[type[R], Command], R]

HELD_MOST = 1_000
"""How many held messages of a queue are looked at for each sample."""

REMEMBER = 60.0
"""For how many seconds a worker is listed after it was last seen to hold something."""


@dataclass
class Worker:
    """Who holds messages, by the name under which it has claimed them."""

    holder: str
    held: dict[str, int] = field(default_factory=dict)
    """How many of each queue, at the last sample."""
    until: int | None = None
    """When the first of its leases lapses, in Unix milliseconds."""
    seen: float = 0.0
    """When it was last seen to hold something, by the monotonic clock."""

    @property
    def holds(self) -> int:
        """How many messages it holds."""
        return sum(self.held.values())


@dataclass(frozen=True)
class Sample:
    """A store at one moment."""

    moment: float
    """By the monotonic clock, in seconds."""
    queues: dict[str, Counts]
    workers: dict[str, Worker]
    partly: bool = False
    """Whether some queue has more held messages than were looked at."""


@dataclass(frozen=True)
class Rates:
    """What has happened in a queue between two samples, a second."""

    put: float
    done: float
    failed: float
    """Attempts that failed: retried, lapsed, or dead at once."""


def take(ask: Ask[object], queues: Iterable[str], moment: float) -> Sample:
    """Look at queues once: a count of each, and who holds what where something is held.

    Raises:
        StoreError: the store cannot be read.
    """
    found: dict[str, Counts] = {}
    workers: dict[str, Worker] = {}
    partly = False
    for queue in queues:
        counts = ask(Counts, Count(queue))
        assert isinstance(counts, Counts)
        found[queue] = counts
        if not counts.sizes.leased:
            continue
        page = ask(Page, Scan(queue, "leased", limit=HELD_MOST))
        assert isinstance(page, Page)
        partly = partly or page.cursor is not None
        for message in page.messages:
            name = message.holder or ""
            worker = workers.setdefault(name, Worker(name, seen=moment))
            worker.held[queue] = worker.held.get(queue, 0) + 1
            if message.until is not None:
                worker.until = min(message.until, worker.until or message.until)
    return Sample(moment, found, workers, partly)


def rates(before: Sample | None, after: Sample, queue: str) -> Rates | None:
    """Return what has happened in a queue between two samples; `None` if that is not known."""
    if before is None or queue not in before.queues or after.moment <= before.moment:
        return None
    seconds = after.moment - before.moment
    old, new = before.queues[queue].flow, after.queues[queue].flow
    if new.put < old.put:  # the store was deleted, and has begun anew
        return None
    failed = (new.retried + new.died + new.lapsed) - (old.retried + old.died + old.lapsed)
    return Rates((new.put - old.put) / seconds, (new.acked - old.acked) / seconds, failed / seconds)


class Workers:
    """Remembers for a while who was seen to hold messages: quick handlers hold them briefly."""

    def __init__(self) -> None:
        self._known: dict[str, Worker] = {}

    def see(self, sample: Sample) -> list[Worker]:
        """Return who was seen lately, those that hold most first."""
        for name, worker in self._known.items():
            if name not in sample.workers:
                worker.held, worker.until = {}, None
        self._known |= sample.workers
        self._known = {
            name: worker
            for name, worker in self._known.items()
            if sample.moment - worker.seen <= REMEMBER
        }
        return sorted(self._known.values(), key=lambda worker: (-worker.holds, worker.holder))
