"""How it stands with a subscription, as people and programs are told: without its secrets."""

from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from bide.server.queue_wire import CountsOut
from bide.targets.amqp import is_amqp
from bide.targets.amqp import shown as shown_address
from bide.targets.http.receiver import Circuit
from bide.targets.http.records import Records
from bide.targets.http.stats import Deliveries
from bide.targets.http.subscription import Subscription

Standing = Literal["active", "paused", "open", "half-open"]
"""Open: the receiver is dead, and left alone for a while."""


class SecretOut(msgspec.Struct, omit_defaults=True):
    """One secret; what it is was told once, when it was made."""

    created: int
    until: int | UnsetType = UNSET
    """From when on nothing is signed with it."""


class CircuitOut(msgspec.Struct, omit_defaults=True):
    """How the receiver fares."""

    state: Literal["closed", "open", "half-open"]
    failures: int = 0
    """How many requests have failed in a row, when that was last told."""
    since: int | UnsetType = UNSET
    """Since when it is open."""
    probe_at: int | UnsetType = UNSET
    """When one message is sent to see whether the receiver is back."""
    error: str = ""
    """What the last failure was."""


class DeliveriesOut(msgspec.Struct, omit_defaults=True):
    """What has come of its requests since the servers that are there began."""

    answers: dict[str, int]
    """How many were answered how: by the first digit of the status, or not at all."""
    running: int = 0
    """How many are under way."""
    taken_at: int | UnsetType = UNSET
    """When the receiver last took a message."""
    failed_at: int | UnsetType = UNSET
    """When a request last failed."""
    error: str = ""
    """What went wrong then."""


class SubscriptionOut(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A subscription. Lengths of time are milliseconds, moments are Unix milliseconds."""

    name: str
    queue: str
    url: str
    state: Standing
    """Open: the receiver is dead, and left alone for a while."""
    reason: str = ""
    """Why it is paused."""
    headers: list[str] = []
    """The names of the headers that are sent; their values may be secret."""
    concurrency: int
    rate: float | UnsetType = UNSET
    timeout: int
    attempts: int
    first: int
    ceiling: int
    failures: int
    probe: int
    secrets: list[SecretOut]
    circuit: CircuitOut
    deliveries: DeliveriesOut | UnsetType = UNSET
    """Not told before anything was sent."""
    messages: CountsOut | UnsetType = UNSET
    """Of its queue, when it is looked at alone."""
    created: int
    changed: int
    secret: str | UnsetType = UNSET
    """A secret that is new: kept from now on, and not told again."""


class Subscriptions(msgspec.Struct):
    """The subscriptions that there are."""

    subscriptions: list[SubscriptionOut]


def shown(
    subscription: Subscription,
    circuit: Circuit,
    now: int,
    secret: str | None = None,
    deliveries: Deliveries | None = None,
) -> SubscriptionOut:
    """Return a subscription as clients see it."""
    circuit = circuit.at(subscription.receiver)
    opened = circuit.since is not None
    return SubscriptionOut(
        **{name: getattr(subscription, name) for name in _SAME},
        url=subscription.url if subscription.signed else shown_address(subscription.url),
        state=standing(subscription, circuit, now),
        headers=sorted(subscription.headers),
        rate=_or_unset(subscription.rate),
        secrets=[
            SecretOut(one.created, _or_unset(one.until))
            for one in subscription.secrets
            if one.until is None or now < one.until
        ],
        circuit=CircuitOut(
            circuit.state(now),
            circuit.failures,
            _or_unset(circuit.since),
            circuit.until if opened else UNSET,
            circuit.error,
        ),
        deliveries=UNSET if deliveries is None else _deliveries(deliveries),
        secret=_or_unset(secret),
    )


async def all_shown(
    records: Records, found: Iterable[Subscription], now: int
) -> list[tuple[Subscription, SubscriptionOut]]:
    """Return subscriptions, each with what clients see of it."""
    circuits, deliveries = await records.peers.circuits(), await records.peers.deliveries()
    return [
        (one, shown(one, circuits.get(one.key, Circuit()), now, None, deliveries.get(one.key)))
        for one in found
    ]


_SAME = (
    "name", "queue", "reason", "concurrency", "timeout", "attempts", "first", "ceiling", "failures",
    "probe", "created", "changed",
)  # fmt: skip
"""Fields that are shown as they are."""


def standing(subscription: Subscription, circuit: Circuit, now: int) -> Standing:
    """Return in a word how it stands with a subscription."""
    state = circuit.state(now)
    return "paused" if subscription.paused else "active" if state == "closed" else state


def masked(url: str) -> str:
    """Return a URL without what stands in its query, which may be a key.

    Example:
        >>> masked("https://shop.example/hook?key=abc")
        'https://shop.example/hook?key=***'
    """
    parts = urlsplit(url)
    if is_amqp(url) or not parts.query:
        return url
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    hidden = urlencode([(name, "***") for name in names], safe="*") if names else "***"
    return parts._replace(query=hidden).geturl()


def _deliveries(told: Deliveries) -> DeliveriesOut:
    answers: dict[str, int] = dict(told.answers.items())
    taken_at, failed_at = _or_unset(told.taken_at or None), _or_unset(told.failed_at or None)
    return DeliveriesOut(answers, told.running, taken_at, failed_at, told.error)


def _or_unset(value: Any) -> Any:
    return UNSET if value is None else value
