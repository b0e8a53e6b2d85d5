"""The clock of the store beside those of the processes: whether it was set, and how far it is off.

A claim that returns messages says what the store's clock showed at some time between the moment in
which it was tried and the moment in which it returned. So it says by how much that clock is ahead
of one that nobody sets: at least this, at most that. What several claims say of a clock that was
not set agrees.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from bide.testing.history.journal import Event
from bide.testing.history.message_history import name_of
from bide.testing.history.violation import Violation

TOLERANCE = 1_000
"""By how many milliseconds two clocks may part within `WINDOW`: they are corrected slowly."""

WINDOW = 600_000
"""For how many milliseconds the claims of a process are taken together."""


class ClockReading(NamedTuple):
    """How far the store's clock was ahead of that of a process, by one or several claims."""

    least: float
    most: float
    began: int
    """`elapsed` of the first claim."""
    process: str

    def joined(self, later: "ClockReading") -> "ClockReading":
        """Return what both say."""
        least, most = max(self.least, later.least), min(self.most, later.most)
        return ClockReading(least, most, self.began, self.process)

    def is_old(self, later: "ClockReading") -> bool:
        """Whether a later reading is too late to be taken together with this one."""
        return later.began - self.began > WINDOW

    def step(self, later: "ClockReading") -> float:
        """Return by how many milliseconds the clock was surely set between two readings."""
        if later.most < self.least - TOLERANCE:
            return later.most - self.least
        if later.least > self.most + TOLERANCE:
            return later.least - self.most
        return 0


class StoreClock:
    """What the journals tell of the store's clock.

    Args:
        journals: one for each process.
    """

    def __init__(self, journals: Sequence[Iterable[Event]]) -> None:
        self.violations: list[Violation] = []
        """Where it was set."""
        self._ahead: float = inf
        """By how many milliseconds it is ahead of the processes at most."""
        self._of_machine: dict[str, list[ClockReading]] = defaultdict(list)
        for number, journal in enumerate(journals, 1):
            self._read(name_of(journal, number), journal)
        for readings in self._of_machine.values():
            readings.sort(key=lambda reading: reading.began)
            for before, after in pairwise(readings):
                self._compare(before, after)

    @property
    def is_steady(self) -> bool:
        """Whether it was never set."""
        return not self.violations

    def is_after(self, now: int, at: int) -> bool:
        """Whether a time of the store's clock is surely after a time of a process."""
        return self.is_steady and now > at + self._ahead

    def _read(self, process: str, journal: Iterable[Event]) -> None:
        """Look at the claims of one process.

        If it says on which machine it runs, others there have the same clock that nobody sets.
        """
        machine = process
        tried: Event | None = None
        joined: ClockReading | None = None
        for event in journal:
            if event.get("tries") == "claim":
                tried = event
            elif event.get("did") == "start":
                process = event.get("name", process)
                machine = event.get("machine", process)
            elif event.get("did") == "claim":
                reading = self._reading(process, event if tried is None else tried, event)
                tried = None
                if joined is None or reading is None:
                    joined = joined or reading
                elif self._compare(joined, reading) or joined.is_old(reading):
                    self._of_machine[machine].append(joined)
                    joined = reading
                else:
                    joined = joined.joined(reading)
        if joined is not None:
            self._of_machine[machine].append(joined)

    def _reading(self, process: str, tried: Event, answered: Event) -> ClockReading | None:
        """Return what a claim says; `None` if it says no `elapsed`."""
        now = answered["now"]
        self._ahead = min(self._ahead, now - tried["at"])
        if "elapsed" not in tried:
            return None
        began = tried["elapsed"]
        return ClockReading(now - answered["elapsed"], now - began, began, process)

    def _compare(self, before: ClockReading, after: ClockReading) -> bool:
        """Note if the clock was set between two readings; return whether it was."""
        step = before.step(after)
        if step == 0:
            return False
        direction = "back" if step < 0 else "forward"
        what = f"the clock of the store was set {direction} by {abs(step) / 1_000:.1f} s or more"
        violation = Violation("clock", f"{what}, as the claims of {after.process} show")
        if violation not in self.violations:
            self.violations.append(violation)
        return True
