"""Requests and answers about subscriptions."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.message import ATTEMPTS, MAX_ATTEMPTS
from bide.model.times import milliseconds
from bide.server.wire import CountsOut, RequestModel, Span, span
from bide.targets.amqp import mask_address
from bide.targets.http.receiver import Circuit
from bide.targets.http.records import Records
from bide.targets.http.stats import Deliveries
from bide.targets.http.subscription import (
    MOST_CONCURRENCY,
    MOST_HEADERS,
    Subscription,
    usual_concurrency,
)

Secret = Annotated[
    str,
    Meta(
        description="Your own secret: `whsec_` and 24 to 64 bytes in base64. If it is missing, "
        "bide makes one and shows it in this answer only.",
        max_length=200,
    ),
]

SPANS = ("timeout", "first", "ceiling", "probe")
"""Fields that are lengths of time."""


class SubscriptionIn(RequestModel):
    """The settings of a subscription."""

    queue: str
    """The queue whose messages are sent."""
    url: Annotated[
        str,
        Meta(
            description="Where messages are sent: https:// (or http://), without a user; or a "
            "broker: amqp:// (or amqps://), with exchange= and key= in the query.",
            max_length=2_048,
            examples=["https://shop.example/hooks/bide"],
        ),
    ]
    headers: Annotated[
        dict[str, str],
        Meta(
            description="Headers of every request, such as `authorization`. Their values are not "
            "shown again.",
            max_length=MOST_HEADERS,
        ),
    ] = msgspec.field(default_factory=dict)
    concurrency: (
        Annotated[
            int,
            Meta(
                description="How many requests may be under way, on all servers together; by "
                "default 10, or 500 messages for RabbitMQ.",
                ge=1,
                le=MOST_CONCURRENCY,
            ),
        ]
        | UnsetType
    ) = UNSET
    rate: (
        Annotated[
            float,
            Meta(
                description="How many requests may begin per second, on all servers together.",
                ge=0.001,
                le=1_000_000,
            ),
        ]
        | None
    ) = None
    timeout: Span = 15
    """How long the receiver may take to answer; up to 5 minutes."""
    attempts: Annotated[
        int,
        Meta(
            description="How often a message is sent at most; the message's own limit counts as "
            "well.",
            ge=1,
            le=MAX_ATTEMPTS,
        ),
    ] = ATTEMPTS
    first: Span = 10
    """The delay after the first failed attempt; it doubles each time."""
    ceiling: Span = 3_600
    """The longest of these delays."""
    failures: Annotated[
        int,
        Meta(
            description="The number of failures in a row after which sending stops for a while.",
            ge=1,
            le=10_000,
        ),
    ] = 5
    probe: Span = 30
    """How long sending stops before one message is sent to probe the receiver."""
    secret: Secret | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `Subscription`, without its name and its secret.

        Raises:
            InvalidArgument: a duration is not valid.
        """
        return {"concurrency": usual_concurrency(self.url)} | fields_of(self)


SubscriptionChange = msgspec.defstruct(
    "SubscriptionChange",
    [
        (name, kind | UnsetType, UNSET)
        for name, kind in get_type_hints(SubscriptionIn, include_extras=True).items()
        if name != "secret"
    ],
    bases=(RequestModel,),
    namespace={"__doc__": "The fields of a subscription to change; the others stay."},
)


class PauseRequest(RequestModel):
    """The reason of a pause."""

    reason: Annotated[str, Meta(max_length=500)] = ""


class RotateRequest(RequestModel):
    """The replacement of the secret."""

    overlap: Span = 86_400
    """How long requests are also signed with the old secrets; 0: not at all."""
    secret: Secret | None = None


class PingOut(msgspec.Struct):
    """The receiver's answer to a request without a message."""

    taken: bool
    """Whether it answered with 200 to 299."""
    answer: str
    """Its status and the beginning of its body, or why there was no answer."""


def fields_of(content: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a `Subscription` in a request, without its secret.

    Args:
        content: a `SubscriptionIn`, or a `SubscriptionChange` with some of its fields.

    Raises:
        InvalidArgument: a duration is not valid.
    """
    return {
        name: milliseconds(span(value), name) if name in SPANS else value
        for name, value in msgspec.structs.asdict(content).items()
        if value is not UNSET and name != "secret"
    }


SubscriptionState = Literal["active", "paused", "open", "half-open"]
"""Open: the receiver fails, and sending has stopped for a while."""


class SecretOut(msgspec.Struct, omit_defaults=True):
    """A secret without its value, which only the answer to its creation shows."""

    created: int
    until: int | None = None
    """The time until which it signs requests."""


class CircuitOut(msgspec.Struct, omit_defaults=True):
    """The state of the receiver."""

    state: Literal["closed", "open", "half-open"]
    failures: int = 0
    """How many requests have failed in a row, at the last report."""
    since: int | None = None
    """When it opened."""
    probe_at: int | None = None
    """When one message is sent to probe the receiver."""
    error: str = ""
    """The last failure."""


class SubscriptionOut(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A subscription. Durations are in milliseconds, times in Unix milliseconds."""

    name: str
    queue: str
    url: str
    state: SubscriptionState
    """Open: the receiver fails, and sending has stopped for a while."""
    reason: str = ""
    """Why it is paused."""
    headers: list[str] = []
    """The names of the headers that are sent; their values may be secret."""
    concurrency: int
    rate: float | None = None
    timeout: int
    attempts: int
    first: int
    ceiling: int
    failures: int
    probe: int
    secrets: list[SecretOut]
    circuit: CircuitOut
    deliveries: Deliveries | None = None
    """Missing before the first request."""
    messages: CountsOut | None = None
    """The counts of its queue, in the answer about one subscription."""
    created: int
    changed: int
    secret: str | None = None
    """A new secret; it is not shown again."""


class Subscriptions(msgspec.Struct):
    """All subscriptions."""

    subscriptions: list[SubscriptionOut]


async def subscriptions_out(
    records: Records, subscriptions: Iterable[Subscription], now: int
) -> list[SubscriptionOut]:
    """Convert subscriptions for an answer, with what servers report about them."""
    circuits, deliveries = await records.peers.circuits(), await records.peers.deliveries()
    shown_subscriptions = []
    for subscription in subscriptions:
        fields = {name: getattr(subscription, name) for name in _FIELDS_IN_COMMON}
        if not subscription.signed:  # the URL of a broker may contain a password
            fields["url"] = mask_address(subscription.url)
        fields["headers"] = sorted(subscription.headers)
        fields["secrets"] = [
            SecretOut(key.created, key.until) for key in subscription.secrets if key.valid(now)
        ]
        # A report about an earlier subscription of this name, by its tag, does not count.
        circuit = circuits.get(subscription.name, Circuit()).of(subscription.tag)
        fields["state"] = state_of(subscription, circuit, now)
        fields["deliveries"] = deliveries.get(subscription.name)
        shown_subscriptions.append(
            SubscriptionOut(
                **fields,
                circuit=CircuitOut(
                    state=circuit.state(now),
                    failures=circuit.failures,
                    since=circuit.since,
                    probe_at=None if circuit.since is None else circuit.until,
                    error=circuit.error,
                ),
            )
        )
    return shown_subscriptions


_FIELDS_IN_COMMON = [
    name for name in SubscriptionOut.__struct_fields__ if hasattr(Subscription, name)
]
"""Fields that are shown as they are."""


def state_of(subscription: Subscription, circuit: Circuit, now: int) -> SubscriptionState:
    """Return the state of a subscription."""
    if subscription.paused:
        return "paused"
    state = circuit.state(now)
    return "active" if state == "closed" else state
