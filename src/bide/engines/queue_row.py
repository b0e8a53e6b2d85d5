"""The settings and counters of a queue, for engines that have its messages as records."""

from typing import Any

import msgspec

from bide.model.ended import STOPPED_KEEP
from bide.model.message import STATES, State
from bide.model.replies import FLOW, Flow, Sizes

_COUNTERS: dict[State, str] = {
    **{state: state for state in STATES},
    "acked": "kept",
    "expired": "kept",
}
"""The field that counts the messages of each state."""


class QueueRow(msgspec.Struct, gc=False):
    """A queue: a row of the table `bide_queue`.

    A queue that does not exist has the id 0, and is empty.
    """

    id: int = 0
    name: str = ""
    paused: int = 0
    keep: int = 0
    history: int = 0
    result_ttl: int = 0
    overdue: str = ""
    limited: int = 0
    weighted: int = 0
    token: int = 0
    ended: int = 0
    successors: int = 0
    closed: int = 0
    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0
    kept: int = 0
    put: int = 0
    acked: int = 0
    cancelled: int = 0
    expired: int = 0
    purged: int = 0
    died: int = 0
    revived: int = 0
    retried: int = 0
    lapsed: int = 0
    moved: int = 0

    @property
    def remembers(self) -> int:
        """For how many milliseconds the ends of messages are remembered."""
        return max(self.history, self.result_ttl)

    @property
    def ends_kept(self) -> int:
        """For how many milliseconds the ends stay that are stored: at least some were stopped."""
        return self.remembers or STOPPED_KEEP

    def add(self, state: State, count: int) -> None:
        """Change the number of messages in a state."""
        counter = _COUNTERS[state]
        setattr(self, counter, getattr(self, counter) + count)

    def move(self, before: State, after: State) -> None:
        """Count a message that goes from one state to another."""
        source, target = _COUNTERS[before], _COUNTERS[after]
        setattr(self, source, getattr(self, source) - 1)
        setattr(self, target, getattr(self, target) + 1)

    def sizes(self, due: int) -> Sizes:
        """Return the number of messages in each state, if so many of the delayed ones are due."""
        return Sizes(self.delayed - due, self.ready + due, self.leased, self.dead)

    def flow(self) -> Flow:
        """Return the counters of what has happened."""
        return Flow(*[getattr(self, name) for name in FLOW])

    def values(self) -> tuple[Any, ...]:
        """Return what commands change: all but the id and the name."""
        return msgspec.structs.astuple(self)[2:]
