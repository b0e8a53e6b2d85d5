"""A circuit breaker: a receiver that is dead is left alone, and probed now and then.

Pure: whoever asks brings the time. (M. Nygard, "Release It!", 2007, chapter 5.)
"""

from typing import Literal

import msgspec

__all__ = ["Circuit", "State"]

State = Literal["closed", "open", "half-open"]

CEILING = 600_000
"""The longest pause between two probes, in milliseconds."""


class Circuit(msgspec.Struct, omit_defaults=True):
    """How it stands with one receiver. Moments are Unix milliseconds.

    Example:
        >>> circuit = Circuit()
        >>> circuit.failed("503", 1_000, most=1, pause=30_000), circuit.state(1_000)
        (True, 'open')
        >>> circuit.state(31_000), circuit.succeeded(31_000), circuit.state(31_000)
        ('half-open', True, 'closed')
    """

    failures: int = 0
    """How many requests have failed in a row."""
    since: int | None = None
    """Since when it is open."""
    until: int = 0
    """While it is open: when one message is sent to see whether the receiver is back."""
    pause: int = 0
    """How long it is left alone this time."""
    error: str = ""
    """What the last failure was."""
    changed: int = 0
    """When it was opened, probed in vain, or closed."""
    receiver: str = ""
    """Whose it is, as `Subscription.receiver` tells; empty: of whichever there is."""

    def at(self, receiver: str) -> "Circuit":
        """Return it if it is of a receiver; one of another receiver says nothing: a new one."""
        return self if self.receiver in ("", receiver) else Circuit()

    def state(self, now: int) -> State:
        """Tell whether everything, nothing, or one message at a time may be sent."""
        if self.since is None:
            return "closed"
        return "open" if now < self.until else "half-open"

    def succeeded(self, now: int) -> bool:
        """Note a success; return whether that closes it."""
        self.failures = 0
        if self.since is None:
            return False
        self.since, self.until, self.pause, self.changed = None, 0, 0, now
        return True

    def failed(self, error: str, now: int, *, most: int, pause: int) -> bool:
        """Note a failure; return whether it opens it, or was a probe in vain.

        Args:
            error: what it was.
            now: the moment.
            most: how many failures in a row are borne.
            pause: how long the receiver is left alone the first time.
        """
        self.failures += 1
        self.error = error
        state = self.state(now)
        if state == "open" or (state == "closed" and self.failures < most):
            return False
        self.pause = min(max(CEILING, pause), self.pause * 2 if state == "half-open" else pause)
        self.since = now if self.since is None else self.since
        self.until, self.changed = now + self.pause, now
        return True
