"""Backoff: how often, and after which pauses, failed work is tried again."""

import math
from dataclasses import dataclass, field

from bide.model.errors import InvalidArgument
from bide.model.message import ATTEMPTS, MAX_ATTEMPTS
from bide.model.times import Duration, milliseconds

__all__ = ["Backoff"]


@dataclass(frozen=True)
class Backoff:
    """Try again after `first`, then after `factor` times as long, and so on up to `ceiling`.

    Args:
        attempts: how many attempts there are, the first one included. A message carries a limit of
            its own from its put (10 by default); the smaller of the two counts.
        first: the pause after the first attempt.
        factor: by how much each pause is longer than the one before; 1 keeps them equal.
        ceiling: the longest pause.
        jitter: by what part a pause is longer or shorter at random, from 0 to 1, so that what
            failed together is not tried again together.
        on: the exceptions after which it is worth trying again; a group of exceptions counts if all
            in it do. Any other makes the message a dead letter at once. `SystemExit` and its like
            say nothing about the message: they always count as worth it.

    Raises:
        InvalidArgument: an argument cannot be.

    Example:
        >>> backoff = Backoff(attempts=4, first="10s", factor=3, ceiling="1m", jitter=0)
        >>> [backoff.delay(attempt, 0.5) for attempt in (1, 2, 3)]
        [10000, 30000, 60000]
    """

    attempts: int = ATTEMPTS
    first: Duration = "10s"
    factor: float = 2
    ceiling: Duration = "1h"
    jitter: float = 0.1
    on: tuple[type[BaseException], ...] = (Exception,)
    _first: int = field(init=False, repr=False, compare=False)
    _ceiling: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise InvalidArgument(
                f"attempts={self.attempts!r} must be a whole number from 1 to {MAX_ATTEMPTS:,}"
            )
        first = milliseconds(self.first, "first")
        ceiling = milliseconds(self.ceiling, "ceiling")
        if ceiling < first:
            raise InvalidArgument(
                f"ceiling={self.ceiling!r} is shorter than first={self.first!r}; it is the longest "
                "pause"
            )
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise InvalidArgument(f"factor={self.factor!r} must be a number, 1 or more")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise InvalidArgument(f"jitter={self.jitter!r} must be a number from 0 to 1")
        on = self.on if isinstance(self.on, tuple) else (self.on,)
        for kind in on:
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                raise InvalidArgument(f"on={self.on!r} must be a tuple of exception classes")
        object.__setattr__(self, "on", on)
        object.__setattr__(self, "_first", first)
        object.__setattr__(self, "_ceiling", ceiling)

    def covers(self, error: BaseException) -> bool:
        """Tell whether an error is worth another attempt; of a group, whether all in it are.

        Example:
            >>> backoff = Backoff(on=(OSError,))
            >>> backoff.covers(ConnectionError()), backoff.covers(KeyError())
            (True, False)
            >>> backoff.covers(ExceptionGroup("both", [TimeoutError(), ConnectionError()]))
            True
        """
        if isinstance(error, self.on):
            return True
        return isinstance(error, BaseExceptionGroup) and all(map(self.covers, error.exceptions))

    def delay(self, attempt: int, random: float) -> int:
        """Return the pause after an attempt, in milliseconds.

        Args:
            attempt: which one has failed, counted from 1.
            random: a number from 0 to 1: where in the range of the jitter the pause lies. 0.5 is
                its middle. Whoever calls this brings the chance, so that it can be told.
        """
        try:
            pause = min(self._first * float(self.factor) ** max(0, attempt - 1), self._ceiling)
        except OverflowError:
            pause = self._ceiling
        return max(0, round(pause * (1 + self.jitter * (2 * random - 1))))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
