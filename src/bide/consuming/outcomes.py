"""What a handler raises to say what becomes of its message, where returning does not say it."""

from bide.clock import SYSTEM_CLOCK
from bide.model.moments import Duration
from bide.queue.command_builder import when

__all__ = ["Bury", "Discard", "Retry", "Signal", "text_of"]


class Signal(Exception):
    """The root of what a handler may raise to steer its message.

    Args:
        reason: what the message remembers, or the log; anything else than text becomes text.
    """

    # Also of a subclass whose own `__init__` does not call this one.
    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = text_of(reason)


class Retry(Signal):
    """Have the message tried again, whatever the backoff says about kinds of errors.

    It counts as an attempt; the last attempt makes the message a dead letter.

    Args:
        reason: what the message remembers of this attempt.
        delay: how long from now; by default what the handler's backoff says.

    Raises:
        InvalidArgument: the delay is none, or ends past the year 2100. In a handler that is a
            failure like any other.

    Example:
        >>> raise Retry("the bank is closed", delay="5m")
        Traceback (most recent call last):
        bide.consuming.outcomes.Retry: the bank is closed
    """

    delay: int | None = None
    """In milliseconds."""

    def __init__(self, reason: object = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        # By this machine's clock: it is only to tell a slip of the pen.
        self.delay = None if delay is None else when(delay, None, SYSTEM_CLOCK.now())[1]


class Discard(Signal):
    """The message is no longer wanted: it leaves the queue as if it were done.

    Args:
        reason: for the log.
    """


class Bury(Signal):
    """Set the message aside as a dead letter now, however many attempts are left.

    Args:
        reason: what the message remembers.
    """


def text_of(value: object) -> str:
    """Return something as text, whatever its own code for that does."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  (of a user's own class)
        return f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"
