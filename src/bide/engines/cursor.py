"""How a scan walks through a queue, and where the page of a reply ends."""

from typing import Literal, NamedTuple

from bide.model.commands import Scan, Where
from bide.model.errors import InvalidArgument
from bide.model.message import STATES, State
from bide.model.rank import EVERYTHING, delayed_reach


class Budget:
    """The bytes of messages that a reply can still take. The first message always fits.

    Example:
        >>> budget = Budget(10)
        >>> budget.takes(12), budget.takes(1)
        (True, False)
    """

    def __init__(self, most_bytes: int) -> None:
        self.left = most_bytes
        self.empty = True

    def takes(self, size: int) -> bool:
        """Return whether a message of this size is still in the reply; if so, count it."""
        if size > self.left and not self.empty:
            return False
        self.left -= size
        self.empty = False
        return True


class Phase(NamedTuple):
    """One stretch of a scan."""

    state: State | Literal["returned", "rest"] | None
    """The set that is walked in the order of its rank; `None`: all records, in any order.

    "returned": the messages that have gone back to an earlier set since the scan began, or to an
    earlier place in their set. "rest": all records, but only if those were more than
    `MAX_RETURNED`: the store does not remember them all, and to wait until no more come might never
    end.
    """
    due: bool | None = None
    """Of the delayed ones: only those that are due (True), or are not yet (False)."""


PHASES: dict[State | Literal["next"] | None, tuple[Phase, ...]] = {
    None: (Phase(None),),
    "next": (Phase("ready"), Phase("delayed")),
    "ready": (Phase("ready"), Phase("delayed", due=True)),
    "delayed": (Phase("delayed", due=False),),
    **{state: (Phase(state),) for state in STATES[2:]},
}


_EACH_SET = (*map(Phase, STATES), Phase("returned"), Phase("rest"))
"""In the order in which claims move messages, so that a scan does not miss them; then those that
have gone back meanwhile."""


def goes_by_set(scan: Scan) -> bool:
    """Return whether a scan reads one set after another: by due times, of no state."""
    by_due = scan.where is not None and scan.where.group is None and scan.where != Where()
    return by_due and scan.state is None


def phases_of(scan: Scan) -> tuple[Phase, ...]:
    """Return the phases of a scan."""
    return _EACH_SET if goes_by_set(scan) else PHASES[scan.state]


BEGIN = "0.0.0"
"""The cursor of the first page."""


class Position(NamedTuple):
    """Where the page of a scan begins: behind the message of this rank and sequence number."""

    phase: int = 0
    """The index of the phase among those of the scan."""
    rank: int = -1
    seq: int = -1
    since: int | None = None
    """The number of the last return before the scan began; `None`: it needs none, or begins."""

    def __str__(self) -> str:
        """Return the position as a cursor."""
        since = "" if self.since is None else f"~{self.since}"
        return f"{self.phase}.{self.rank}.{self.seq}{since}"


def position(cursor: str | None) -> Position:
    """Return the position of a cursor.

    Raises:
        InvalidArgument: when no scan made this cursor.
    """
    if cursor is None:
        return Position()
    place, mark, since = cursor.partition("~")
    texts = [*place.split("."), *([since] if mark else [])]
    parts = [int(part) for part in texts if part.isdecimal() and len(part) < 20]
    if place.count(".") != 2 or len(parts) != len(texts) or max(parts) >= 1 << 62:
        raise InvalidArgument(f"cursor={cursor!r} is not from a scan; begin without one")
    return Position(*parts)


def delayed_span(
    phase: Phase, after: Position, due: tuple[int, int], now: int
) -> tuple[int, int, int]:
    """Return where a page of the delayed ones begins, and the last rank that can be in it.

    Args:
        phase: one of the delayed ones.
        after: behind which message it goes on.
        due: from when to before when the messages are due that are wanted, in milliseconds.
        now: the time.

    Returns:
        The rank and the sequence number behind which the page begins; the last rank.
    """
    first, last = max(after.rank, due[0] * 256 - 1), min(EVERYTHING, due[1] * 256 - 1)
    if phase.due is True:
        last = min(last, delayed_reach(now))
    if phase.due is False:
        first = max(first, delayed_reach(now))
    return first, after.seq if first == after.rank else EVERYTHING, last
