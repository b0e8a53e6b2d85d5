"""The clock of the store beside those of the processes: whether it was set, and how far it is off.

A claim that returns messages says what the store's clock showed at some time between the moment in
which it was tried and the moment in which it returned.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from bide.testing.history.journal import Event
from bide.testing.history.message_history import name_of
from bide.testing.history.violation import Violation

TOLERANCE = 1_000
"""By how many milliseconds a clock may differ from one that nobody sets: it is corrected slowly."""


class ClockReading(NamedTuple):
    """What the store's clock showed between two moments of a process."""

    now: int
    tried: int
    """`elapsed` when the claim was tried."""
    answered: int
    """`elapsed` when it returned."""


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
        for number, journal in enumerate(journals, 1):
            self._read(name_of(journal, number), journal)

    @property
    def is_steady(self) -> bool:
        """Whether it was never set."""
        return not self.violations

    def is_after(self, now: int, at: int) -> bool:
        """Whether a time of the store's clock is surely after a time of a process."""
        return self.is_steady and now > at + self._ahead

    def _read(self, process: str, journal: Iterable[Event]) -> None:
        """Look at the claims of one process, whose own clock is the same for all of them."""
        previous: ClockReading | None = None
        for tried, answered in _claims(journal):
            self._ahead = min(self._ahead, answered["now"] - tried["at"])
            if "elapsed" not in tried:
                continue
            reading = ClockReading(answered["now"], tried["elapsed"], answered["elapsed"])
            if previous is not None:
                self._compare(process, previous, reading)
            previous = reading

    def _compare(self, process: str, before: ClockReading, after: ClockReading) -> None:
        """Compare how far the clock has gone with the time that has passed."""
        gone = after.now - before.now
        least = after.tried - before.answered
        most = after.answered - before.tried
        if gone < least - TOLERANCE:
            step, direction = least - gone, "back"
        elif gone > most + TOLERANCE:
            step, direction = gone - most, "forward"
        else:
            return
        what = f"the clock of the store was set {direction} by {step / 1_000:.1f} s"
        detail = f"{process} claimed at {before.now} and at {after.now}, {least} ms later"
        self.violations.append(Violation("clock", f"{what}: {detail}"))


def _claims(journal: Iterable[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield the claims that returned messages: the event before, and the one after."""
    tried: Event | None = None
    for event in journal:
        if event.get("tries") == "claim":
            tried = event
        elif event.get("did") == "claim":
            yield (event if tried is None else tried), event
            tried = None
