"""What requests and answers look like: the structs of which the OpenAPI description is made.

Moments are given as ISO 8601 with a zone or as Unix seconds, and told as Unix milliseconds; lengths
of time are given as "1h30m" or in seconds. A body is any JSON value under `body`, or bytes in
base64 under `bytes`.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.errors import InvalidArgument
from bide.model.message import ATTEMPTS, Failure, Message, State
from bide.model.moments import Moment
from bide.model.replies import Counts, Flow, Outcome, Sizes

__all__ = [
    "AckRequest",
    "AffectedOut",
    "BuryRequest",
    "Changed",
    "ClaimedOut",
    "ConfigureRequest",
    "CountsOut",
    "Deliver",
    "Empty",
    "EndLeaseRequest",
    "ExtendRequest",
    "Given",
    "Id",
    "LeaseOf",
    "MessageOut",
    "Messages",
    "OutcomesOut",
    "PurgeRequest",
    "PutMany",
    "ReleaseRequest",
    "RetryRequest",
    "ReviveRequest",
    "Span",
    "When",
    "moment",
    "shown",
    "span",
]

Span = Annotated[
    float | str,
    Meta(
        description="A length of time: seconds, or numbers with the units ms, s, m, h, d, w.",
        examples=["30m", "1h30m", 90],
    ),
]
When = Annotated[
    float | str,
    Meta(
        description="A moment: ISO 8601 with a zone, or Unix seconds.",
        examples=["2030-01-01T09:00:00Z", 1893456000],
    ),
]
Id = Annotated[str, Meta(description="1 to 512 bytes without control characters.", min_length=1)]


class _In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Given(_In):
    """A message to be put."""

    body: Any = UNSET
    """Any JSON value."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """Bytes, in base64, instead of `body`."""
    id: Id | None = None
    """A name of your own; made up when missing."""
    delay: Span | None = None
    """How long from now until it is due. Not together with `at`; due at once without both."""
    at: When | None = None
    """When it is due."""
    priority: Annotated[int, Meta(ge=0, le=255)] = 0
    """Higher goes first among messages that are due."""
    expires: Span | None = None
    """How long after its due moment it is still worth delivering."""
    attempts: Annotated[int, Meta(ge=1, le=10_000)] = ATTEMPTS
    """How often it is handed out at most before it becomes a dead letter."""
    group: Id | None = None
    """A name that several messages share."""
    headers: dict[str, str] | None = None
    """Text that travels beside the body."""


class PutMany(_In):
    """Messages to be put together: all are stored, or none."""

    messages: Annotated[list[Given], Meta(max_length=10_000)]
    on_conflict: Literal["keep", "replace"] = "keep"
    """What to do with a message whose id is there already."""


class Changed(_In):
    """The new moment of a message: `delay` or `at`."""

    delay: Span | None = None
    at: When | None = None


class Deliver(_In):
    """How many due messages to claim, and for how long."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    lease: Span = 30
    """How long they are yours."""
    wait: Span = 0
    """How long to wait for the first to fall due, if none is."""
    holder: Id | None = None
    """By what name you are known to others."""


class LeaseOf(msgspec.Struct, forbid_unknown_fields=True):
    """Your hold on a message: both fields as the claim told them."""

    id: Id
    token: Annotated[int, Meta(ge=0, le=(1 << 53))]


Leases = Annotated[list[LeaseOf], Meta(min_length=1, max_length=10_000)]


class AckRequest(_In):
    """Messages that are done."""

    leases: Leases


class RetryRequest(_In):
    """Messages that are to be tried again."""

    leases: Leases
    delay: Span = 0
    reason: str = ""
    """What went wrong; the messages remember it."""


class ExtendRequest(_In):
    """Messages to be held for longer."""

    leases: Leases
    lease: Span = 30
    """How long from now."""


class BuryRequest(_In):
    """Messages that are to become dead letters."""

    leases: Leases
    reason: str = ""


class ReleaseRequest(_In):
    """Messages that are handed back untouched."""

    leases: Leases


class EndLeaseRequest(_In):
    """Why a lease is ended."""

    reason: str | None = None
    """What the message remembers; "released by" and the caller's name when missing."""


class ReviveRequest(_In):
    """Dead letters that are to be delivered again."""

    ids: Annotated[list[Id], Meta(max_length=1_000)] | None = None
    """Which; up to 1,000 of the oldest when missing."""
    delay: Span = 0


class PurgeRequest(_In):
    """Which messages to delete."""

    state: Literal["delayed", "ready", "dead", "acked", "expired"]
    before: When | None = None
    """Only those that came into this state (delayed, ready: fall due) before this moment."""


class ConfigureRequest(_In):
    """What to set for a queue."""

    paused: bool | None = None
    keep: Span | None = None
    """How long acked messages and their ids are remembered."""


class Empty(_In):
    """Nothing; the body may be left out."""


class FailureOut(msgspec.Struct):
    """An attempt that did not end in an ack."""

    attempt: int
    moment: int
    holder: str
    reason: str


class MessageOut(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message as it is at one moment. Moments are Unix milliseconds."""

    id: str
    queue: str
    state: State
    due: int
    priority: int
    attempt: int
    """How many times it was handed out."""
    attempts: int
    """How many times it is handed out at most."""
    token: int | UnsetType = UNSET
    """In the answer to a claim: what proves your hold; give it back with the ack."""
    expires: int | UnsetType = UNSET
    """How many milliseconds after `due` it is still worth delivering."""
    group: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    holder: str | UnsetType = UNSET
    until: int | UnsetType = UNSET
    """When the lease lapses."""
    ended: int | UnsetType = UNSET
    """When it became dead, acked or expired."""
    failures: list[FailureOut] | UnsetType = UNSET
    body: msgspec.Raw | UnsetType = UNSET
    """The body, if it is JSON."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """The body in base64, if it is not."""


class Messages(msgspec.Struct, omit_defaults=True):
    """Some messages, and where the next page begins."""

    messages: list[MessageOut]
    cursor: str | None = None
    """Give it with the next request; there is no next page when it is missing."""


class ClaimedOut(msgspec.Struct, omit_defaults=True):
    """The messages that are yours now."""

    messages: list[MessageOut]
    now: int
    """The store's clock at the claim, in Unix milliseconds."""
    next: int | None = None
    """If no message came: in how many milliseconds the next falls due, if any does."""


class OutcomesOut(msgspec.Struct):
    """What became of each message, in the order in which they were named."""

    outcomes: list[Outcome]


class AffectedOut(msgspec.Struct):
    """How many messages a rule found, and whether more are left."""

    count: int
    more: bool


class CountsOut(msgspec.Struct, omit_defaults=True):
    """How many messages are where, and what has become of the others."""

    sizes: Sizes
    flow: Flow
    kept: int = 0
    """Messages that are remembered though they are gone."""
    paused: bool = False
    keep: int = 0
    """For how many milliseconds acked messages are remembered."""
    oldest: int | None = None
    """The due moment of the message that has waited longest, if one is due."""
    recount: Sizes | None = None
    """In an audit: the messages themselves, counted in the same snapshot."""
    strays: int | None = None
    """In an audit: messages in no state or in two. Always 0 in a sound store."""

    @classmethod
    def of(cls, counts: Counts) -> "CountsOut":
        """Return counts as they are sent."""
        return cls(**{name: getattr(counts, name) for name in cls.__struct_fields__})


def moment(value: str | float | None, name: str) -> Moment | None:
    """Return a moment of a request as bide takes it.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass  # then it is ISO 8601
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidArgument(
            f"{name}={value!r} is no moment; write ISO 8601 with a zone, as 2030-01-01T09:00:00Z, "
            "or Unix seconds"
        ) from None
    if found.utcoffset() is None:
        raise InvalidArgument(
            f"{name}={value!r} has no time zone, so it names no moment; add one at its end, as in "
            "2030-01-01T09:00:00Z or 2030-01-01T09:00:00+08:00"
        )
    return found


def span(value: str | float) -> str | float:
    """Return a length of time of a query, where a plain number is text, as bide takes it."""
    if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
        return float(value)
    return value


def shown(message: Message, queue: str, token: int | UnsetType = UNSET) -> MessageOut:
    """Return a message as it is sent, under the name that its queue has in the namespace."""
    data: Any = message.data
    return MessageOut(
        id=message.id,
        queue=queue,
        state=message.state,
        due=message.due,
        priority=message.priority,
        attempt=message.attempt,
        attempts=message.attempts,
        token=token,
        expires=_or_unset(message.expires),
        group=_or_unset(message.group),
        headers=_or_unset(message.headers),
        holder=_or_unset(message.holder),
        until=_or_unset(message.until),
        ended=_or_unset(message.ended),
        failures=[_failure(f) for f in message.failures] if message.failures else UNSET,
        body=msgspec.Raw(data) if message.json else UNSET,
        raw=UNSET if message.json else data,
    )


def _or_unset(value: Any) -> Any:
    return UNSET if value is None else value


def _failure(failure: Failure) -> FailureOut:
    return FailureOut(failure.attempt, failure.moment, failure.holder, failure.reason)
