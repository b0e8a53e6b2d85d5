"""What a queue of the memory engine remembers of messages that have ended."""

from collections import deque

import msgspec

from bide.engines.memory.record import Record
from bide.model.ended import KEPT_ENDS, End, Ending, size_of_end


class RememberedEnds:
    """The ends of messages, by id."""

    def __init__(self) -> None:
        self.history = 0
        """How long they are remembered, in milliseconds."""
        self.result_ttl = 0
        """How long they are remembered with their results."""
        self._by_id: dict[str, list[End]] = {}
        self._order: deque[tuple[int, str]] = deque()

    @property
    def _lasts(self) -> int:
        return max(self.history, self.result_ttl)

    def add(
        self, record: Record, how: Ending, by: str | None, now: int, result: bytes | None = None
    ) -> None:
        """Remember how a message ended, if the queue does."""
        if not (self.history or self.result_ttl):
            return
        failures = record.failures if self.history else ()
        kept = result if self.result_ttl else None
        end = End(how, now, by, record.due, record.attempt, record.since, failures, kept)
        self._by_id[record.id] = [end, *self._by_id.get(record.id, [])][:KEPT_ENDS]
        self._order.append((now, record.id))

    def of(self, id: str, now: int) -> list[End]:
        """Return how messages with an id ended, the newest first."""
        return [
            end if end.moment > now - self.result_ttl else msgspec.structs.replace(end, result=None)
            for end in self._by_id.get(id, [])
            if end.moment > now - self._lasts
        ]

    def forget(self, now: int, limit: int) -> None:
        """Delete up to `limit` ends that were remembered for long enough."""
        while limit and self._order and self._order[0][0] <= now - self._lasts:
            moment, id = self._order.popleft()
            left = [end for end in self._by_id.get(id, []) if end.moment > moment]
            if left:
                self._by_id[id] = left
            else:
                self._by_id.pop(id, None)
            limit -= 1

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return sum(size_of_end(end) for ends in self._by_id.values() for end in ends)
