"""Where claims begin to look, as the server said at the claim before."""

import time

from bide.engines.postgres.arrays import Array, integers

LAST = 60.0
"""Seconds after which a claim looks everywhere again, whatever the last one said: the server's
clock may have been set back. A thousand times as long as that look took, if that is longer, but
no more than `END`: it may only have waited for a lock."""

END = 3_600.0

_CALM = 5
"""The place of 1, if all transactions have ended that were open at the claim before, and of 0."""


class Floors:
    """The floors of the queues that one connection claims from: see `_claim` in the schema."""

    def __init__(self) -> None:
        self._floors: dict[str, list[int | None]] = {}
        self._until: dict[str, float] = {}

    def of(self, queue: str) -> Array | None:
        """Return where a claim is to begin; `None`: everywhere."""
        floor = self._floors.get(queue)
        if floor is None or time.monotonic() >= self._until[queue]:
            return None
        return integers(floor)

    def looked(self, queue: str, begin: float) -> None:
        """Note that a claim looked everywhere; it began at a moment of the monotonic clock."""
        took = time.monotonic() - begin
        self._until[queue] = begin + min(max(LAST, 1_000 * took), END)

    def update(self, floors: dict[str, list[int | None]]) -> None:
        """Take what claims answered, by queue."""
        self._floors.update(floors)

    def clear(self) -> None:
        """Forget all."""
        self._floors.clear()

    def is_calm(self, queue: str) -> bool:
        """Whether no transaction is open that was so at the claim before the last one."""
        floor = self._floors.get(queue)
        return floor is not None and len(floor) > _CALM and floor[_CALM] == 1
