"""A circuit breaker: it stops sending to a failing receiver, and probes it now and then.

Pure: callers pass the time. (M. Nygard, "Release It!", 2007, chapter 5.)
"""

from typing import Literal

import msgspec

State = Literal["closed", "open", "half-open"]

CEILING = 600_000
"""The longest time between two probes, in milliseconds."""

SKEW = 60_000
"""By how many milliseconds the clocks of servers may differ."""


class Circuit(msgspec.Struct, omit_defaults=True):
    """The state of one receiver. Times are Unix milliseconds.

    Example:
        >>> circuit = Circuit()
        >>> circuit.failed("503", 1_000, most=1, pause=30_000), circuit.state(1_000)
        (True, 'open')
        >>> circuit.state(31_000), circuit.succeeded(31_000), circuit.state(31_000)
        ('half-open', True, 'closed')
    """

    failures: int = 0
    """How many requests failed in a row."""
    since: int | None = None
    """When it was opened; `None`: it is closed."""
    until: int = 0
    """While it is open: the time of the next probe, one message."""
    pause: int = 0
    """How long it stays open this time, in milliseconds."""
    error: str = ""
    """The last failure."""
    changed: int = 0
    """When it was opened or closed, or a probe failed; later than the change before."""
    receiver: str = ""
    """The `Subscription.receiver` that it is about; empty: of any."""

    def at(self, receiver: str) -> "Circuit":
        """Return it if it is about this receiver, else a new circuit."""
        return self if self.receiver in ("", receiver) else Circuit()

    def state(self, now: int) -> State:
        """Return the state: closed sends all, open sends nothing, half-open sends one message."""
        if self.since is None:
            return "closed"
        # If the end is farther off than it can be, the clock that set it was wrong.
        return "open" if 0 < self.until - now <= self.pause + SKEW else "half-open"

    def succeeded(self, now: int) -> bool:
        """Count a success; return whether it closes the circuit."""
        self.failures = 0
        if self.since is None:
            return False
        self.since, self.until, self.pause = None, 0, 0
        self.changed = max(now, self.changed + 1)
        return True

    def failed(self, error: str, now: int, *, most: int, pause: int) -> bool:
        """Count a failure; return whether it opens the circuit, or was a failed probe.

        Args:
            error: the failure.
            now: the time.
            most: how many failures in a row open the circuit.
            pause: how long it stays open the first time.
        """
        self.failures += 1
        self.error = error
        state = self.state(now)
        if state == "open" or (state == "closed" and self.failures < most):
            return False
        self.pause = min(max(CEILING, pause), self.pause * 2 if state == "half-open" else pause)
        self.since = now if self.since is None else self.since
        self.until, self.changed = now + self.pause, max(now, self.changed + 1)
        return True
