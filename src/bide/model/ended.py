"""What a queue remembers of messages that have ended."""

import sys
from datetime import datetime
from typing import Any, Literal

import msgspec

from bide.model.body import OR_BYTES, check_json, encode
from bide.model.errors import BideError, InvalidArgument
from bide.model.limits import MAX_RESULT
from bide.model.message import LAPSED, Failure
from bide.model.times import to_datetime

Ending = Literal["acked", "cancelled", "expired", "dead", "purged", "moved"]

ENDINGS: tuple[Ending, ...] = ("acked", "cancelled", "expired", "dead", "purged", "moved")

PENDING = ("delayed", "ready", "leased")
"""States of messages that have not ended."""

STOPPED_KEEP = 60_000
"""For how many milliseconds a queue without `history` and `result_ttl` remembers how messages ended
whose workers were asked to stop."""

KEPT_ENDS = 20
"""How many ends of messages with the same id a queue remembers: the last ones."""


UNREADABLE_END = "what the queue remembers of the end of this message cannot be read"


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One delivery of a message that has ended. Times are Unix milliseconds."""

    number: int
    """From 1."""
    start: int | None
    """When the worker got the message; `None`: it is not known."""
    end: int
    holder: str
    """The worker."""
    outcome: Literal["acked", "failed", "lapsed"]
    """"lapsed": its lease expired."""
    error: str | None = None
    """Why it failed."""


class End(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """How a message ended, as a queue with `history` or `result_ttl` remembers it."""

    how: Ending
    """"dead" is the end of a dead letter, too, though it can be revived; then it ends once more."""
    moment: int
    """When it ended, in Unix milliseconds."""
    by: str | None
    """Who ended it: the holder of the lease, or the actor of the command; `None`: time did."""
    due: int
    """When it was due, in Unix milliseconds."""
    attempt: int
    """How often it was delivered."""
    since: int | None = None
    """If it was acked: when the worker got it, in Unix milliseconds."""
    failures: tuple[Failure, ...] = ()
    """The attempts that failed, oldest first, the last 20; with `history` alone."""
    result: bytes | None = None
    """The result of an ack, as JSON; with `result_ttl` alone."""

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts, oldest first: the last 20 that failed, and the one that was acked."""
        attempts = [
            Attempt(
                failure.attempt,
                failure.started,
                failure.moment,
                failure.holder,
                "lapsed" if failure.reason == LAPSED else "failed",
                failure.reason,
            )
            for failure in self.failures
        ]
        if self.how == "acked":
            end = Attempt(self.attempt, self.since, self.moment, self.by or "", "acked")
            attempts.append(end)
        return attempts


class Ended(End, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """A message that has ended, and its last end, as a list of a queue with `history` has it.

    It has no `result`: `Queue.history` and `Queue.result` read that.
    """

    id: str

    @classmethod
    def of(cls, id: str, end: End) -> "Ended":
        """Return the entry of a message in a list.

        Example:
            >>> end = End(how="acked", moment=0, by="w1", due=0, attempt=1, result=b"3")
            >>> entry = Ended.of("order-42", end)
            >>> entry.id, entry.how, entry.result
            ('order-42', 'acked', None)
        """
        values = {name: getattr(end, name) for name in End.__struct_fields__}
        return cls(id=id, **{**values, "result": None})

    @classmethod
    def unreadable(cls, id: str, moment: int) -> "Ended":
        """Return the entry of a message of which it can only be read when it ended, as of a dead
        letter: a message whose record cannot be read is one, too.

        Args:
            id: of the message.
            moment: when it ended, in Unix milliseconds.
        """
        failures = (Failure(0, moment, "", UNREADABLE_END),)
        return cls(
            id=id, how="dead", moment=moment, by=None, due=moment, attempt=0, failures=failures
        )

    @property
    def ended_at(self) -> datetime:
        """`moment` as an aware `datetime`."""
        return to_datetime(self.moment)

    @property
    def error(self) -> str | None:
        """The reason of the last failure, if there was one; with `history` alone."""
        return self.failures[-1].reason if self.failures else None


class NotAcked(BideError):
    """A message has no result: it died, expired, was cancelled, purged or moved."""

    def __init__(self, text: str, end: End | None = None) -> None:
        super().__init__(text)
        self.end = end
        """How it ended, if the queue remembers that; with the failures of its dead letter."""


def why_not_kept(queue: str, state: str | None, keep: int, history: int) -> str | None:
    """Return why a queue has no messages in a state because of its settings; `None`: it could.

    Args:
        queue: its name.
        state: the state that is listed, or the way to end.
        keep: its setting, in milliseconds.
        history: its setting, in milliseconds.

    Example:
        >>> str(why_not_kept("orders", "acked", 0, 86_400_000)).partition("; ")[2]
        "'bide ended orders --how acked' lists those that it remembers"
        >>> why_not_kept("orders", "acked", 1, 0), why_not_kept("orders", "dead", 0, 0)
        (None, None)
    """
    remembering = f"'bide set {queue} --history 7d' remembers how each has ended"
    if state in ("cancelled", "purged", "moved") and not history:
        return f"{queue} keeps no {state} messages; {remembering}"
    if state != "acked" or keep:
        return None
    fix = f"'bide set {queue} --keep 1d' does, and refuses their ids"
    text = f"{queue} keeps no acked messages ({fix})"
    if history:
        return f"{text}; 'bide ended {queue} --how acked' lists those that it remembers"
    return f"{text}; {remembering}"


def check_result(result: bytes) -> None:
    """Check that a result is JSON, and not too large.

    Raises:
        InvalidArgument: the result is not JSON, or is too large.
    """
    if len(result) > MAX_RESULT:
        raise InvalidArgument(
            f"result takes {len(result):,} bytes, the limit is {MAX_RESULT:,}; store it elsewhere "
            "and give a reference"
        )
    check_json(result, "result")


def encode_result(value: Any) -> bytes:
    """Return a result as JSON.

    Raises:
        InvalidArgument: it cannot be JSON, or it is too large.

    Example:
        >>> encode_result({"total": 3})
        b'{"total":3}'
    """
    try:
        data, is_json = encode(value, sys.maxsize)  # `check_result` knows the limit
    except InvalidArgument as error:
        text = str(error).replace("body", "result", 1).removesuffix(OR_BYTES)
        raise InvalidArgument(text) from error
    if not is_json:
        raise InvalidArgument("result is bytes; give a JSON value, such as a str")
    if len(data) > MAX_RESULT:
        check_result(data)  # raises
    return data


def message_hint(queue: str, id: str) -> str:
    """Return the name under which hints of a message go: that it has ended, or is to stop.

    No queue has a space in its name, so it is none of a queue.

    Example:
        >>> message_hint("orders", "order-42")
        'orders order-42'
    """
    return f"{queue} {id}"


def size_of_end(end: End) -> int:
    """Return about the size of an end in a reply, in bytes."""
    size = 100 + len(end.by or "") + len(end.result or b"")  # 100 for names and numbers
    if end.failures:
        size += len(msgspec.json.encode(end.failures))
    return size


def within_budget(ends: list[End], max_bytes: int) -> list[End]:
    """Return as many of the first ends as a reply of `max_bytes` holds, and at least one."""
    remaining_bytes = max_bytes
    for number, end in enumerate(ends):
        remaining_bytes -= size_of_end(end)
        if remaining_bytes < 0 and number > 0:
            return ends[:number]
    return ends
