"""The tick that the function of a schedule gets. In a file of its own: `bide` exports it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Missed = Literal["once", "all", "skip"]
"""What to do with ticks that no worker ran in time."""


@dataclass(frozen=True)
class Tick:
    """One scheduled call of a function.

    Example:
        >>> import bide
        >>> app = bide.App("memory://")
        >>> @app.schedule("reports", every="15m")
        ... def report(tick: bide.Tick) -> None:
        ...     print(f"of {tick.previous:%H:%M} to {tick.due:%H:%M}")
    """

    schedule: str
    """The name of the schedule: its queue."""
    due: datetime
    """The scheduled time, in the time zone of the schedule."""
    previous: datetime | None
    """The time of the tick before it that was not skipped; `None` for the first one."""
    missed: bool
    """Whether no worker ran it in time."""
