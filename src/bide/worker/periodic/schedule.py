"""A schedule: a function that is called repeatedly, and the rules for its ticks."""

from dataclasses import dataclass

import msgspec

from bide.model.errors import InvalidArgument
from bide.worker.periodic.recurrence import Recurrence
from bide.worker.periodic.tick import Missed

MISSED: tuple[Missed, ...] = ("once", "all", "skip")


class TickBody(msgspec.Struct, frozen=True):
    """The body of a tick. Times are Unix milliseconds."""

    due: int
    previous: int | None
    spec: str
    """The `Recurrence.spec` of the schedule that put it."""
    since: int
    """When the process with this schedule started: of two different schedules the newer counts."""
    missed: bool = False


@dataclass(frozen=True, eq=False)
class Schedule:
    """One schedule of an app."""

    queue: str
    name: str
    recurrence: Recurrence
    missed: Missed
    grace: int
    """In milliseconds."""
    attempts: int


@dataclass(frozen=True)
class Plan:
    """What to do with a tick. Times are Unix milliseconds."""

    run: bool
    missed: bool
    """Whether it starts too late."""
    following: int
    """The time of the next tick to put."""
    previous: int | None
    """The time of the tick before that."""
    why: str = ""
    """Why it is not run."""


def plan(
    recurrence: Recurrence, tick: TickBody, now: int, missed: Missed, grace: int, first: bool
) -> Plan:
    """Decide what to do with a claimed tick.

    Args:
        recurrence: the times of ticks.
        tick: the one that was claimed.
        now: when, by the store's clock.
        missed: what to do with ticks that start too late.
        grace: how late a tick may start, in milliseconds.
        first: whether this is its first attempt; a tick that started on time is not missed later.
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
    """Return the value of `missed=` after a check.

    Raises:
        InvalidArgument: it is not one of the three.
    """
    if missed not in MISSED:
        raise InvalidArgument(f'missed={missed!r} must be "once", "all" or "skip"')
    return missed
