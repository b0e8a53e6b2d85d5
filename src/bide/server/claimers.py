"""Claimers: who has claimed by HTTP lately, or waits for a message."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bide.model.limits import MAX_CLAIMERS

LATELY = 15.0
"""For how many seconds a claimer is remembered between two claims."""


class Claimers:
    """Remembers them by the name that each gives, and the queue."""

    def __init__(self) -> None:
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._seen: dict[tuple[str, str], float] = {}

    @property
    def waiting(self) -> int:
        """How many claims wait."""
        return self._waiting.total()

    @contextmanager
    def wait(self, holder: str, queue: str) -> Iterator[None]:
        """Count a claim that waits for as long as the block runs."""
        self._waiting[holder, queue] += 1
        try:
            yield
        finally:
            self._waiting[holder, queue] -= 1
            if not self._waiting[holder, queue]:
                del self._waiting[holder, queue]
            self.seen(holder, queue)

    def seen(self, holder: str, queue: str) -> None:
        """Somebody has claimed."""
        if len(self._seen) < MAX_CLAIMERS or (holder, queue) in self._seen:
            self._seen[holder, queue] = time.monotonic()

    def listed(self) -> dict[str, list[str]]:
        """Return who there is, and which queues each claims from."""
        since = time.monotonic() - LATELY
        self._seen = {key: moment for key, moment in self._seen.items() if moment > since}
        found: dict[str, list[str]] = {}
        for holder, queue in [*self._waiting, *(k for k in self._seen if k not in self._waiting)]:
            if holder in found or len(found) < MAX_CLAIMERS:
                found.setdefault(holder, []).append(queue)
        return found
