"""The figures of push, in numbers that add up with those of other processes."""

from collections.abc import Container, Mapping
from typing import Literal, Self, get_args

import msgspec

from bide.observing.tally import Stats, Tally
from bide.targets.http.answer import Answer
from bide.targets.intake_stats import IntakeStats

Class = Literal["2xx", "3xx", "4xx", "5xx", "none"]
"""The class of an answer's status; "none": no valid answer, or one below 200 or above 599."""

CLASSES: tuple[Class, ...] = get_args(Class)


class Deliveries(Stats, omit_defaults=True):
    """The requests since the running servers started. Times are Unix milliseconds.

    Example:
        >>> deliveries = Deliveries()
        >>> deliveries.note(Answer(503, "503 Service Unavailable"), 1_000)
        >>> deliveries.answers, deliveries.error
        ({'5xx': 1}, '503 Service Unavailable')
    """

    CURRENT = ("running",)

    answers: dict[Class, int] = msgspec.field(default_factory=dict)
    """The number of requests by class of the answer."""
    running: int = 0
    """How many requests are running."""
    taken_at: int = 0
    """When the receiver last accepted a message."""
    failed_at: int = 0
    """When a request last failed."""
    error: str = ""
    """The error of that request."""

    def note(self, answer: Answer, now: int) -> None:
        """Count an answer."""
        status = answer.status or 0
        found: Class = CLASSES[status // 100 - 2] if 200 <= status < 600 else "none"
        self.answers[found] = self.answers.get(found, 0) + 1
        if answer.good:
            self.taken_at = now
        else:
            self.failed_at, self.error = now, answer.text

    def plus(self, other: Self) -> Self:
        """Return the sum of both, with the last error."""
        last = max(self, other, key=lambda one: one.failed_at)
        return msgspec.structs.replace(
            super().plus(other), taken_at=max(self.taken_at, other.taken_at),
            failed_at=last.failed_at, error=last.error,
        )  # fmt: skip


class PushStats(Stats):
    """The figures of push, by the keys of the subscriptions."""

    tallies: Mapping[str, Tally] = {}
    """Lateness, duration and outcomes of deliveries."""
    deliveries: Mapping[str, Deliveries] = {}
    """The answers of receivers."""
    taken: Mapping[str, IntakeStats] = {}
    """What intakes took into the store, by exchange."""

    def only(self, keys: Container[str]) -> "PushStats":
        """Return the figures of some subscriptions, and of all intakes."""
        return PushStats(
            {key: one for key, one in self.tallies.items() if key in keys},
            {key: one for key, one in self.deliveries.items() if key in keys},
            self.taken,
        )
