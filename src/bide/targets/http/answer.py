"""What a receiver answered, and what that means for the message. Nothing here waits or sends."""

from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple

from bide.consuming.policy import ACK, RELEASE, Verdict
from bide.model.backoff import Backoff
from bide.model.message import Message

__all__ = ["Answer", "Failed", "retry_after", "verdict"]

LONGEST_RETRY_AFTER = 3_600_000
"""How long a receiver may ask to be left alone, in milliseconds."""

AWAY = frozenset({429, 502, 503, 504})
"""Statuses that say nothing about the message: the receiver is busy, or behind a proxy and away."""


class Answer(NamedTuple):
    """What came of one request."""

    status: int | None
    """`None`: nothing that could be read came back."""
    text: str
    """What happened, with the first part of the answer; never a secret."""
    again: int | None = None
    """For how many milliseconds the receiver asks to be left alone."""

    @property
    def good(self) -> bool:
        """Whether the receiver has taken the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver says that it wants nothing any more."""
        return self.status == HTTPStatus.GONE

    @property
    def away(self) -> bool:
        """Whether it says nothing about the message: another one would have fared the same."""
        return self.status is None or self.status in AWAY

    @property
    def counts(self) -> bool:
        """Whether it is a failure of the receiver; "too many requests" comes of its health."""
        return not self.good and self.status != HTTPStatus.TOO_MANY_REQUESTS


class Failed(Exception):
    """A request has not brought its message home."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


def verdict(
    message: Message, answer: Answer, backoff: Backoff, chance: float, *, is_open: bool
) -> Verdict:
    """Return what becomes of a message.

    Args:
        message: as it was claimed; its attempt and attempts count.
        answer: what came of sending it.
        backoff: of the subscription.
        chance: 0 to 1, for the jitter.
        is_open: whether the circuit is open, by this failure or before. Then a message is not to
            blame for a receiver that is away, and keeps its attempt.
    """
    if answer.good:
        return ACK
    if answer.gone or (is_open and answer.away):
        return RELEASE
    if message.attempt >= min(backoff.attempts, message.attempts):
        return Verdict("bury", reason=answer.text)
    pause = max(backoff.delay(message.attempt, chance), answer.again or 0)
    return Verdict("retry", pause, answer.text)


def retry_after(value: str | None, now: int) -> int | None:
    """Return what the header Retry-After asks for, in milliseconds; `None` if it is none.

    Args:
        value: seconds, or a date as HTTP writes it.
        now: the moment, in Unix milliseconds.

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
