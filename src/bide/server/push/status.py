"""How it stands with a subscription, as people and programs are told: without its secrets."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from bide.server.push.circuit import Circuit
from bide.server.push.subscription import Subscription

__all__ = ["CircuitOut", "SecretOut", "SubscriptionOut", "shown"]


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


class SubscriptionOut(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A subscription. Lengths of time are milliseconds, moments are Unix milliseconds."""

    name: str
    queue: str
    url: str
    state: Literal["active", "paused", "open", "half-open"]
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
    created: int
    changed: int
    secret: str | UnsetType = UNSET
    """A secret that is new: kept from now on, and not told again."""


def shown(
    subscription: Subscription, circuit: Circuit, now: int, secret: str | None = None
) -> SubscriptionOut:
    """Return a subscription as it is told."""
    state = circuit.state(now)
    return SubscriptionOut(
        name=subscription.name,
        queue=subscription.queue,
        url=subscription.url,
        state="paused" if subscription.paused else "active" if state == "closed" else state,
        reason=subscription.reason,
        headers=sorted(subscription.headers),
        concurrency=subscription.concurrency,
        rate=UNSET if subscription.rate is None else subscription.rate,
        timeout=subscription.timeout,
        attempts=subscription.attempts,
        first=subscription.first,
        ceiling=subscription.ceiling,
        failures=subscription.failures,
        probe=subscription.probe,
        secrets=[
            SecretOut(one.created, UNSET if one.until is None else one.until)
            for one in subscription.secrets
            if one.until is None or now < one.until
        ],
        circuit=CircuitOut(
            state,
            circuit.failures,
            UNSET if circuit.since is None else circuit.since,
            UNSET if circuit.since is None else circuit.until,
            circuit.error,
        ),
        created=subscription.created,
        changed=subscription.changed,
        secret=UNSET if secret is None else secret,
    )
