"""The answers to the requests of a subscription, in numbers that add up over servers."""

from typing import Literal, get_args

import msgspec

from bide.targets.http.answer import Answer

__all__ = ["CLASSES", "Class", "Deliveries", "class_of"]

Class = Literal["2xx", "3xx", "4xx", "5xx", "none"]
"""The class of an answer's status; "none": there was no valid answer."""

CLASSES: tuple[Class, ...] = get_args(Class)


class Deliveries(msgspec.Struct, omit_defaults=True):
    """The requests since the running servers started. Times are Unix milliseconds.

    Example:
        >>> deliveries = Deliveries()
        >>> deliveries.note(Answer(503, "503 Service Unavailable"), 1_000)
        >>> deliveries.answers, deliveries.error
        ({'5xx': 1}, '503 Service Unavailable')
    """

    answers: dict[Class, int] = {}
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
        found = class_of(answer)
        self.answers[found] = self.answers.get(found, 0) + 1
        if answer.good:
            self.taken_at = now
        else:
            self.failed_at, self.error = now, answer.text

    def plus(self, other: "Deliveries") -> "Deliveries":
        """Return the sum of both."""
        names = self.answers | other.answers
        last = max((self, other), key=lambda one: one.failed_at)
        return Deliveries(
            {name: self.answers.get(name, 0) + other.answers.get(name, 0) for name in names},
            self.running + other.running,
            max(self.taken_at, other.taken_at),
            last.failed_at,
            last.error,
        )

    def ceased(self) -> "Deliveries":
        """Return the figures without what is running, once the process has ended."""
        return msgspec.structs.replace(self, running=0)


def class_of(answer: Answer) -> Class:
    """Return the class of an answer; a status below 200 or above 599 is "none"."""
    status = answer.status or 0
    return CLASSES[status // 100 - 2] if 200 <= status < 600 else "none"
