"""The answer of a receiver, and the outcome of the message. Nothing here waits or sends."""

from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple

from bide.consuming.policy import ACK, RELEASE, Verdict
from bide.model.backoff import Backoff
from bide.model.message import Message

LONGEST_RETRY_AFTER = 3_600_000
"""The longest Retry-After that is respected, in milliseconds."""

BEHIND = RELEASE._replace(delay=1)
"""Release a message behind those that are due, so that the next probe is another one's."""

AWAY = frozenset({429, 502, 503, 504})
"""Statuses of a receiver that is busy or away; they say nothing about the message."""


class Answer(NamedTuple):
    """The result of one request."""

    status: int | None
    """`None`: there was no valid answer."""
    text: str
    """The status and the first part of the answer, without secrets."""
    again: int | None = None
    """The milliseconds of Retry-After, if the receiver sent it."""

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
        """Whether it counts as a failure of the receiver; 429 shows that it is alive."""
        return not self.good and self.status != HTTPStatus.TOO_MANY_REQUESTS


class Failed(Exception):
    """The receiver did not accept a message.

    Args:
        answer: what it answered.
        probe: whether the message was to show that the receiver is back.
    """

    def __init__(self, answer: Answer, *, probe: bool) -> None:
        super().__init__(answer.text)
        self.answer = answer
        self.probe = probe


def verdict(
    message: Message, answer: Answer, backoff: Backoff, chance: float, *, is_open: bool, probe: bool
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
        # The receiver may be away for this message alone, which takes too long or breaks it.
        return BEHIND if probe and not answer.gone else RELEASE
    if message.attempt >= min(backoff.attempts, message.attempts):
        return Verdict("bury", reason=answer.text)
    pause = max(backoff.delay(message.attempt, chance), answer.again or 0)
    return Verdict("retry", pause, answer.text)


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
        return min(int(text[:12]) * 1000, LONGEST_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(0, round(moment * 1000) - now), LONGEST_RETRY_AFTER)
