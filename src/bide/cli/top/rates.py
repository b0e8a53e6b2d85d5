"""What `bide top` derives from samples: rates between two of them, and recent workers."""

from dataclasses import dataclass

from bide.observing.sample import REMEMBER, Sample, Worker

__all__ = ["Rates", "Workers", "rates"]


@dataclass(frozen=True)
class Rates:
    """What has happened in a queue between two samples, a second."""

    put: float
    done: float
    failed: float
    """Attempts that failed: retried, lapsed, or dead at once."""


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
    """Remembers for a while who was seen: one that says nothing of itself is seen by what it holds.

    `bide worker` says that it is there; a program of one's own that claims by hand does not.
    """

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
