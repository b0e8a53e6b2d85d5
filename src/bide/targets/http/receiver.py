"""What is known of a receiver: its answers, its circuit and its pace.

Nothing here waits, sends or reads a clock: callers pass the time.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Literal, NamedTuple

import msgspec

from bide.consuming.verdict import ACK, RELEASE, Verdict
from bide.model.backoff import Backoff
from bide.model.message import Message

LONGEST_RETRY_AFTER = 3_600_000
"""The longest Retry-After that is respected, in milliseconds."""

BEHIND = RELEASE._replace(delay=1)
"""Release a message behind those that are due, so that the next probe is another one's."""

AWAY = frozenset({429, 502, 503, 504})
"""Statuses of a receiver that is busy or away; they say nothing about the message."""


class ReceiverAnswer(NamedTuple):
    """The result of one request."""

    status: int | None
    """`None`: there was no valid answer."""
    text: str
    """The status and the first part of the answer, without secrets."""
    retry_after: int | None = None
    """The milliseconds of Retry-After; `None`: the receiver sent no valid one."""

    @property
    def good(self) -> bool:
        """Whether the receiver accepted the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no more messages (410)."""
        return self.status == HTTPStatus.GONE

    @property
    def away(self) -> bool:
        """Whether the failure says nothing about the message: any message would have failed."""
        return self.status is None or self.status in AWAY

    @property
    def counts(self) -> bool:
        """Whether it counts as a failure in the circuit; 429 does not: the receiver is alive."""
        return not self.good and self.status != HTTPStatus.TOO_MANY_REQUESTS


class Failed(Exception):
    """The receiver did not accept a message.

    Args:
        answer: what it answered.
        probe: whether the message was to show that the receiver is back.
    """

    def __init__(self, answer: ReceiverAnswer, *, probe: bool) -> None:
        super().__init__(answer.text)
        self.answer = answer
        self.probe = probe


def verdict(
    message: Message,
    answer: ReceiverAnswer,
    backoff: Backoff,
    chance: float,
    *,
    is_open: bool,
    probe: bool,
) -> Verdict:
    """Return how to settle a message.

    Args:
        message: as it was claimed; its attempt and attempts count.
        answer: the result of the request.
        backoff: of the subscription.
        chance: 0 to 1, for the jitter.
        is_open: whether the circuit is open, by this failure or before. Then a message that met a
            receiver that is away keeps its attempt.
        probe: whether this was a probe.
    """
    if answer.good:
        return ACK
    if answer.gone or (is_open and answer.away):
        # The receiver may be away for this message alone, which takes too long or breaks it: the
        # next probe must be another message.
        return BEHIND if probe and not answer.gone else RELEASE
    if message.attempt >= min(backoff.attempts, message.attempts):
        return Verdict("dead", reason=answer.text)
    pause = max(backoff.delay(message.attempt, chance), answer.retry_after or 0)
    return Verdict("retried", pause, answer.text)


def retry_after(value: str | None, now: int) -> int | None:
    """Return the duration of a Retry-After header in milliseconds; `None` if it is not valid.

    Args:
        value: seconds, or a date of HTTP.
        now: the time in Unix milliseconds.

    Example:
        >>> retry_after("120", 0), retry_after("Thu, 01 Jan 1970 00:00:10 GMT", 4_000)
        (120000, 6000)
        >>> retry_after("soon", 0), retry_after("99999999", 0)
        (None, 3600000)
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        # Twelve digits are more than the maximum; Python refuses to read thousands of them.
        return min(int(text[:12]) * 1000, LONGEST_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
        # Dates of HTTP are in UTC; one of their three forms names no zone.
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):  # all that it raises for odd texts
        return None
    return min(max(0, round(seconds * 1000) - now), LONGEST_RETRY_AFTER)


State = Literal["closed", "open", "half-open"]

CEILING = 600_000
"""The longest time between two probes, in milliseconds."""

SKEW = 60_000
"""Milliseconds by which the clocks of servers may differ."""


class Circuit(msgspec.Struct, omit_defaults=True):
    """A circuit breaker: stops sending to a failing receiver, and probes it now and then.

    Times are Unix milliseconds. (M. Nygard, "Release It!", 2007, chapter 5.)

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
    tag: str = ""
    """The version of the subscription that it is about: a change closes the circuit."""

    def of(self, tag: str) -> "Circuit":
        """Return it if it is about this version, else a new circuit."""
        return self if self.tag == tag else Circuit(tag=tag)

    def state(self, now: int) -> State:
        """Return the state: closed sends all, open sends nothing, half-open sends one message."""
        if self.since is None:
            return "closed"
        remaining = self.until - now
        # If the end is farther off than it can be, the clock that set it was wrong.
        return "open" if 0 < remaining <= self.pause + SKEW else "half-open"

    def succeeded(self, now: int) -> bool:
        """Count a success; return whether it closes the circuit."""
        self.failures = 0
        if self.since is None:
            return False
        self.since, self.until, self.pause = None, 0, 0
        # Later than before even if the clock was set back: the last change counts on all servers.
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
        # Open: a request that was under way when it opened.
        if state == "open" or (state == "closed" and self.failures < most):
            return False
        next_pause = self.pause * 2 if state == "half-open" else pause
        # A subscription may ask for a first pause that is longer than the ceiling.
        self.pause = min(next_pause, max(CEILING, pause))
        if self.since is None:
            self.since = now
        self.until = now + self.pause
        self.changed = max(now, self.changed + 1)
        return True


SAVED = 0.1
"""Seconds for which unused requests are saved: no second has more than a tenth too many."""

ROUNDING = 1e-6
"""What may be missing of a saved request: where a machine has run for years, the seconds of its
monotonic clock are that coarse, times a rate of 10. Of a higher rate, more than one is saved."""


class Pace:
    """Limits how many requests start in a second. Times are seconds of the monotonic clock.

    Args:
        rate: requests per second; `None`: no limit.

    Example:
        >>> pace = Pace(20)
        >>> pace.room(10, 0.0), pace.take(2), pace.room(10, 0.0), pace.wait(0.0)
        (2, None, 0, 0.05)
    """

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._since = float("-inf")
        """Since when requests are saved: each request that starts moves it later. In the future:
        too many have started."""

    def room(self, most: int, now: float) -> int:
        """Return how many of `most` requests may start now."""
        if self.rate is None:
            return most
        return min(most, int(self._saved(self.rate, now) + ROUNDING))

    def take(self, count: int) -> None:
        """Count requests that have started."""
        if self.rate is not None:
            self._since += count / self.rate

    def wait(self, now: float) -> float:
        """Return in how many seconds the next may start."""
        if self.rate is None:
            return 0.0
        missing = max(0.0, 1 - self._saved(self.rate, now))
        return missing / self.rate

    def _saved(self, rate: float, now: float) -> float:
        """Return how many requests are saved, or how many too many have started, below 0."""
        most_saved = max(1.0, rate * SAVED)
        self._since = max(self._since, now - most_saved / rate)
        return (now - self._since) * rate
