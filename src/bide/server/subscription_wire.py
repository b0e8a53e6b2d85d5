"""What requests about subscriptions look like: the structs of which their description is made."""

from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.message import ATTEMPTS, MAX_ATTEMPTS
from bide.model.times import milliseconds
from bide.server.wire import Request, Span, span
from bide.targets.http.subscription import MOST_CONCURRENCY, MOST_HEADERS, usual_concurrency

Secret = Annotated[
    str,
    Meta(
        description="A secret of your own: `whsec_` and 24 to 64 bytes in base64. One is made when "
        "it is missing, and told in the answer: this once.",
        max_length=200,
    ),
]

SPANS = ("timeout", "first", "ceiling", "probe")
"""Fields that are lengths of time."""


class SubscriptionIn(Request):
    """A subscription as it is to be."""

    queue: str
    """Whose messages are sent."""
    url: Annotated[str, Meta(
        description="Where messages are sent: https:// (or http://), without a user; or a broker: "
        "amqp:// (or amqps://), with exchange= and key= in the query.",
        max_length=2_048, examples=["https://shop.example/hooks/bide"],
    )]  # fmt: skip
    headers: Annotated[dict[str, str], Meta(
        description="Sent with every request, as for an `authorization`. Their values are not told "
        "again.", max_length=MOST_HEADERS,
    )] = msgspec.field(default_factory=dict)  # fmt: skip
    concurrency: Annotated[int, Meta(
        description="How many requests may be under way, on all servers together; by default 10, "
        "or 500 messages for RabbitMQ.", ge=1, le=MOST_CONCURRENCY,
    )] | UnsetType = UNSET  # fmt: skip
    rate: Annotated[float, Meta(
        description="How many requests may begin a second, on all servers together.",
        ge=0.001, le=1_000_000,
    )] | None = None  # fmt: skip
    timeout: Span = 15
    """How long the receiver may take to answer; up to 5 minutes."""
    attempts: Annotated[int, Meta(
        description="How often a message is sent at most; the message's own limit counts as well.",
        ge=1, le=MAX_ATTEMPTS,
    )] = ATTEMPTS  # fmt: skip
    first: Span = 10
    """The pause after the first attempt; each is twice as long as the one before."""
    ceiling: Span = 3_600
    """The longest pause between attempts."""
    failures: Annotated[int, Meta(
        description="After so many failures in a row the receiver is left alone for a while.",
        ge=1, le=10_000,
    )] = 5  # fmt: skip
    probe: Span = 30
    """For how long it is left alone before one message is sent to see whether it is back."""
    secret: Secret | None = None

    def fields(self) -> dict[str, Any]:
        """Return what a `Subscription` is made of, without its name and its secret.

        Raises:
            InvalidArgument: a length of time is none.
        """
        return {"concurrency": usual_concurrency(self.url)} | fields_of(self)


SubscriptionChange = msgspec.defstruct(
    "SubscriptionChange",
    [
        (name, kind | UnsetType, UNSET)
        for name, kind in get_type_hints(SubscriptionIn, include_extras=True).items()
        if name != "secret"
    ],
    bases=(Request,),
    namespace={"__doc__": "What is to be another way about a subscription; the rest stays."},
)


class PauseRequest(Request):
    """Why nothing is to be sent."""

    reason: Annotated[str, Meta(max_length=500)] = ""


class RotateRequest(Request):
    """How the secret is to be replaced."""

    overlap: Span = 86_400
    """For how long requests are signed with the old secrets as well; 0: not at all."""
    secret: Secret | None = None


class PingOut(msgspec.Struct):
    """What the receiver said to a request without a message."""

    taken: bool
    """Whether it answered with 200 to 299."""
    answer: str
    """Its status and the first part of what it said, or why there was no answer."""


def fields_of(given: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a `Subscription` that a request gives, without its secret.

    Raises:
        InvalidArgument: a length of time is none.
    """
    found = {
        name: value
        for name, value in msgspec.structs.asdict(given).items()
        if value is not UNSET and name != "secret"
    }
    for name in SPANS:
        if name in found:
            found[name] = milliseconds(span(found[name]), name)
    return found
