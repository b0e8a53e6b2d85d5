"""The exceptions that a handler raises to choose the outcome of its message."""

from datetime import timedelta

from bide.model.errors import InvalidArgument
from bide.model.times import Duration, delay_in_ms, milliseconds


class ChosenOutcome(Exception):
    """The base of the exceptions that choose an outcome.

    Args:
        reason: stored with the message, or logged; converted to text.
    """

    # Also of a subclass whose own `__init__` does not call this one.
    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = text_of(reason)


class Retry(ChosenOutcome):
    """Retry the message, also for errors that the backoff does not retry.

    It counts as an attempt; the last attempt makes the message a dead letter.

    Args:
        reason: stored with the attempt.
        delay: how long from now; by default as the handler's backoff says.

    Raises:
        InvalidArgument: the delay is not valid, or ends past the year 2100; or the reason is a
            delay, as in `Retry("5m")`. In a handler this is a failure like any other.

    Example:
        >>> raise Retry("the bank is closed", delay="5m")
        Traceback (most recent call last):
        bide.consuming.outcomes.Retry: the bank is closed
    """

    delay: int | None = None
    """In milliseconds."""

    def __init__(self, reason: object = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        if delay is None and _is_delay(reason):
            raise InvalidArgument(f"reason={reason!r} is a delay; write Retry(delay={reason!r})")
        self.delay = None if delay is None else delay_in_ms(delay)


class Discard(ChosenOutcome):
    """Ack the message without work: it is no longer wanted.

    Args:
        reason: for the log.
    """


class Bury(ChosenOutcome):
    """Make the message a dead letter now, whatever attempts are left.

    Args:
        reason: stored with the message.
    """


def _is_delay(reason: object) -> bool:
    """Tell whether a reason was meant as a delay, which would be ignored."""
    if isinstance(reason, str):
        try:
            return milliseconds(reason) >= 0
        except InvalidArgument:
            return False
    return isinstance(reason, (int, float, timedelta)) and not isinstance(reason, bool)


def text_of(value: object) -> str:
    """Return a value as text, even if its own `__str__` raises."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  (code of a user's class)
        return f"<{type(value).__name__}, whose __str__ raised {type(error).__name__}>"
