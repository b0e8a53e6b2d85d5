"""A schedule: a function that is called again and again, and what is done with its ticks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from bide.consuming.handling import Handling
from bide.model.errors import InvalidArgument
from bide.worker.periodic.recurrence import Recurrence
from bide.worker.periodic.tick import Missed

__all__ = ["MISSED", "Plan", "Schedule", "TickBody", "check_missed", "plan"]

MISSED: tuple[Missed, ...] = ("once", "all", "skip")


class TickBody(msgspec.Struct, frozen=True):
    """The body of a tick. Moments are Unix milliseconds."""

    due: int
    previous: int | None
    spec: str
    """By which schedule it was put."""
    since: int
    """When the process started that brought this schedule: of two that differ the newer counts."""
    missed: bool = False


@dataclass(frozen=True, eq=False)
class Schedule:
    """One schedule of an app."""

    queue: str
    name: str
    function: Callable[..., Any]
    order: str
    """Which arguments it takes: "b", "bd", "db" or "d", for tick and delivery."""
    recurrence: Recurrence
    missed: Missed
    grace: int
    """In milliseconds."""
    attempts: int

    def run(self, one: Handling) -> Any:
        """Call the function with what it takes; of an async one that gives what to await."""
        if self.order == "b":
            return self.function(one.given)
        if self.order == "bd":
            return self.function(one.given, one)
        return self.function(one, one.given) if self.order == "db" else self.function(one)


@dataclass(frozen=True)
class Plan:
    """What is to be done with a tick. Moments are Unix milliseconds."""

    run: bool
    missed: bool
    """Whether it comes too late to be on time."""
    following: int
    """The tick that is to be put next."""
    previous: int | None
    """What that tick knows as the one before it."""
    why: str = ""
    """Why it is not run."""


def plan(
    recurrence: Recurrence, tick: TickBody, now: int, missed: Missed, grace: int, first: bool
) -> Plan:
    """Decide what is to be done with a tick that was claimed.

    Args:
        recurrence: by which ticks come.
        tick: the one that was claimed.
        now: when, by the store's clock.
        missed: what the user wants of ticks that come too late.
        grace: from how late on that is so.
        first: whether this is its first attempt; what was begun on time is not missed later.
    """
    due = tick.due
    if recurrence.after(due - 1) != due:
        why = f"the schedule is {recurrence.spec} now"
        return Plan(False, False, recurrence.after(now), tick.previous, why)
    if not first or now - due <= grace:
        return Plan(True, tick.missed, recurrence.after(due), due)
    if missed == "skip":
        following = recurrence.after(max(due, now - grace - 1))
        return Plan(False, True, following, tick.previous, "it was missed")
    if missed == "once" and (latest := recurrence.latest(now, due)) > due:
        return Plan(False, True, latest, tick.previous, "a later one that was missed stands for it")
    return Plan(True, True, recurrence.after(due), due)


def check_missed(missed: str) -> Missed:
    """Return what to do about missed ticks, if it is one of the three.

    Raises:
        InvalidArgument: it is none.
    """
    if missed not in MISSED:
        raise InvalidArgument(f'missed={missed!r} must be "once", "all" or "skip"')
    return missed
