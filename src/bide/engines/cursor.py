"""How a scan walks through a queue, and where the page of a reply ends."""

from typing import Literal, NamedTuple

from bide.model.commands import Scan, Where
from bide.model.errors import InvalidArgument
from bide.model.message import State


class Budget:
    """The bytes of messages that a reply can still take. The first message always fits.

    Example:
        >>> budget = Budget(10)
        >>> budget.takes(12), budget.takes(1)
        (True, False)
    """

    def __init__(self, most: int) -> None:
        self.left = most
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

    state: State | None
    """The set that is walked in the order of its rank; `None`: all records, in any order."""
    due: bool | None = None
    """Of the delayed ones: only those that are due (True), or are not yet (False)."""


PHASES: dict[State | Literal["next"] | None, tuple[Phase, ...]] = {
    None: (Phase(None),),
    "next": (Phase("ready"), Phase("delayed")),
    "ready": (Phase("ready"), Phase("delayed", due=True)),
    "delayed": (Phase("delayed", due=False),),
    "leased": (Phase("leased"),),
    "dead": (Phase("dead"),),
    "acked": (Phase("acked"),),
    "expired": (Phase("expired"),),
}


_EACH_SET = tuple(
    Phase(state) for state in ("delayed", "ready", "leased", "dead", "acked", "expired")
)
"""In the order in which claims move messages, so that a scan does not miss them."""


def phases_of(scan: Scan) -> tuple[Phase, ...]:
    """Return the phases of a scan. With due times and no state it walks one set after another."""
    by_due = scan.where is not None and scan.where.group is None and scan.where != Where()
    return _EACH_SET if by_due and scan.state is None else PHASES[scan.state]


BEGIN = "0.0.0"
"""The cursor of the first page."""


def cursor_after(phase: int, rank: int, seq: int) -> str:
    """Return the cursor of the page that begins behind this place."""
    return f"{phase}.{rank}.{seq}"


def position(cursor: str | None) -> tuple[int, tuple[int, int]]:
    """Return the phase of a cursor, and its rank and sequence number.

    Raises:
        InvalidArgument: when no scan made this cursor.
    """
    if cursor is None:
        return 0, (-1, -1)
    parts = [int(part) for part in cursor.split(".") if part.isdecimal() and len(part) < 20]
    if cursor.count(".") != 2 or len(parts) != 3 or max(parts) >= 1 << 63:
        raise InvalidArgument(f"cursor={cursor!r} comes from no scan; begin without one")
    phase, rank, seq = parts
    return phase, (rank, seq)
