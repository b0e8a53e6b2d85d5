"""What a handler raises to say what becomes of its message, where returning does not say it."""

from bide.model.moments import Duration, milliseconds

__all__ = ["Bury", "Discard", "Retry", "Signal"]


class Signal(Exception):
    """The root of what a handler may raise to steer its message."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Signal):
    """Have the message tried again, whatever the backoff says about kinds of errors.

    It counts as an attempt; the last attempt makes the message a dead letter.

    Args:
        delay: how long from now; by default what the handler's backoff says.
        reason: what the message remembers of this attempt.

    Example:
        >>> raise Retry(delay="5m", reason="the bank is closed")
        Traceback (most recent call last):
        bide.worker.signals.Retry: the bank is closed
    """

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else milliseconds(delay)


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
