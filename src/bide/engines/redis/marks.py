"""Marks: by what a script that is sent again knows whether it was carried out before.

A script that changes something leaves its answer under the mark of its call: the number of the
call, and its slot, which is its place in the pipeline. What is sent next takes the slots over.
"""

import time

__all__ = ["Marks"]

REFRESH = 60.0
"""After so many seconds a script is told to have the answers live on."""

SPARE = 90.0
"""For how many seconds they outlive the time in which a call may be sent again."""


class Marks:
    """The marks of one lane.

    Args:
        reconnect: for how many seconds a call may be sent again.
    """

    def __init__(self, reconnect: float) -> None:
        self._lifetime = int(REFRESH + reconnect + SPARE)
        self._next = 0
        self._refreshed: dict[str, float] = {}

    def reserve(self, calls: int) -> int:
        """Return the number of the first of so many calls."""
        self._next += calls
        return self._next - calls

    def text(self, number: int, slot: int, shard: str, *, writes: bool, again: bool) -> str:
        """Return a mark as scripts read it.

        Args:
            number: that of the call.
            slot: its place in its pipeline.
            shard: a name of the shard that it is about.
            writes: whether the script changes something.
            again: whether it was sent before.
        """
        if writes and (again or time.monotonic() >= self._refreshed.get(shard, -REFRESH) + REFRESH):
            self._refreshed[shard] = time.monotonic()
            return f"{'?' if again else ''}!{self._lifetime}!{number}/{slot}"
        return f"{'?' if again else ''}{number}/{slot}"
