"""Backoff: how often failed work is retried, and after which delays."""

from contextlib import suppress
from dataclasses import dataclass

from bide.model.errors import InvalidArgument
from bide.model.limits import check_range, check_whole
from bide.model.message import ATTEMPTS, MAX_ATTEMPTS
from bide.model.times import Duration, milliseconds


@dataclass(frozen=True)
class Backoff:
    """Retry after `first`, then after `factor` times as long, and so on up to `ceiling`.

    Args:
        attempts: the number of attempts, including the first. A message has its own limit from its
            put (10 by default); the smaller of the two counts.
        first: the delay after the first attempt.
        factor: each delay is so many times as long as the one before; 1 keeps them equal.
        ceiling: the longest delay, before jitter.
        jitter: by how much of itself a delay is made longer or shorter at random, from 0 to 1, so
            that messages that failed together are not retried together.
        on: the exceptions that are retried; an exception group is retried if all in it are. Any
            other exception makes the message a dead letter at once. `SystemExit` and the like say
            nothing about the message: they are always retried.

    Raises:
        InvalidArgument: an argument is not valid.

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

    def __post_init__(self) -> None:
        check_whole(self.attempts, "attempts", 1, MAX_ATTEMPTS)
        if milliseconds(self.ceiling, "ceiling") < milliseconds(self.first, "first"):
            raise InvalidArgument(
                f"ceiling={self.ceiling!r} is shorter than first={self.first!r}; it is the longest "
                "delay"
            )
        check_range(self.factor, "factor", 1, 1e300)
        check_range(self.jitter, "jitter", 0, 1)
        on = self.on if isinstance(self.on, tuple) else (self.on,)
        for error_type in on:
            if not isinstance(error_type, type) or not issubclass(error_type, BaseException):
                raise InvalidArgument(f"on={self.on!r} must be a tuple of exception classes")
        object.__setattr__(self, "on", on)

    def covers(self, error: BaseException) -> bool:
        """Tell whether an error is retried; a group is if all errors in it are.

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
        """Return the delay after an attempt, in milliseconds.

        Args:
            attempt: the number of the failed attempt, from 1.
            random: 0 to 1: the place in the range of the jitter; 0.5 is its middle.
        """
        pause: float = milliseconds(self.ceiling)
        with suppress(OverflowError):  # a power that large exceeds any ceiling
            growth = float(self.factor) ** max(0, attempt - 1)
            pause = min(milliseconds(self.first) * growth, pause)
        return max(0, round(pause * (1 + self.jitter * (2 * random - 1))))
