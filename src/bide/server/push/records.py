"""Where subscriptions are kept: in the store itself, as messages that are never due.

So all servers on a store know the same subscriptions, without a database beside it.
"""

import asyncio
from typing import Any, TypeVar

import msgspec

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Find, Put, Scan
from bide.model.errors import Unsupported
from bide.model.message import Item, Message
from bide.model.moments import LATEST
from bide.model.replies import Found, Outcomes, Page, Reply
from bide.server.push.circuit import Circuit
from bide.server.push.signing import Secret, check_secret, new_secret
from bide.server.push.subscription import Subscription, key_of

__all__ = ["Records", "share"]

SUBSCRIPTIONS = "bide.server/subscriptions"
CIRCUITS = "bide.server/circuits"
PRESENCE = "bide.server/pushers"

MOST = 10_000
"""How many subscriptions a store may have."""

STANDING = ("paused", "reason")

PRESENT = 6_000
"""For how many milliseconds a server counts as present after it was last seen."""

R = TypeVar("R", bound=Reply)
T = TypeVar("T")


class Records:
    """The subscriptions of a store, and what its servers tell each other about them.

    Args:
        lane: the way to the store.
        clock: what moments are told by.
    """

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self._lane = lane
        self._clock = clock

    async def listed(self) -> list[Subscription]:
        """Return all subscriptions, by their keys."""
        return await self._all(SUBSCRIPTIONS, Subscription)

    async def of(self, namespace: str | None) -> list[Subscription]:
        """Return the subscriptions of one namespace, by name."""
        return [one for one in await self.listed() if one.namespace == namespace]

    async def get(self, namespace: str | None, name: str) -> Subscription | None:
        """Return a subscription, `None` if there is none of this name."""
        found = await self._ask(Found, Find(SUBSCRIPTIONS, [key_of(namespace, name)]))
        return _decoded(found.messages[0], Subscription)

    async def put(
        self, given: Subscription, secret: str | None = None
    ) -> tuple[Subscription, str | None]:
        """Create a subscription, or put this one in the place of the one of its name.

        Whether it is paused stays as it was.

        Args:
            given: as it is to be; its secrets and moments are seen to here.
            secret: a secret of the caller's own; in the place of those there were.

        Returns:
            It as it is kept, and its secret if that is new.

        Raises:
            InvalidArgument: one of its values cannot be.
        """
        given.check()
        await self._must_find()
        now = self._clock.now()
        known = await self.get(given.namespace, given.name)
        shown = None
        if secret is not None:
            secrets: tuple[Secret, ...] = (Secret(check_secret(secret), now),)
        elif known is not None:
            secrets = known.secrets
        else:
            shown = new_secret()
            secrets = (Secret(shown, now),)
        state: dict[str, Any] = {"created": now, "changed": 0}
        if known is not None:
            state = {name: getattr(known, name) for name in ("created", "changed", *STANDING)}
        kept = msgspec.structs.replace(given, secrets=secrets, **state)
        if known is None or (known.url, known.queue) != (kept.url, kept.queue):
            await self.forget_circuit(kept.key)  # another receiver begins anew
        return await self.keep(kept), shown

    async def keep(self, subscription: Subscription) -> Subscription:
        """Store a subscription as it is, as changed now."""
        changed = max(self._clock.now(), subscription.changed + 1)  # each change is another one
        kept = msgspec.structs.replace(subscription, changed=changed)
        await self._put(SUBSCRIPTIONS, kept.key, kept)
        return kept

    async def pause(self, subscription: Subscription, reason: str = "") -> Subscription:
        """Send nothing more, until `resume`."""
        return await self.keep(msgspec.structs.replace(subscription, paused=True, reason=reason))

    async def resume(self, subscription: Subscription) -> Subscription:
        """Send again; a circuit that was open is closed."""
        await self.forget_circuit(subscription.key)
        return await self.keep(msgspec.structs.replace(subscription, paused=False, reason=""))

    async def rotate(
        self, subscription: Subscription, overlap: int, secret: str | None = None
    ) -> tuple[Subscription, str]:
        """Sign with a new secret from now on, and with the others for a while as well.

        Args:
            subscription: whose.
            overlap: for how many milliseconds the others go on to count.
            secret: the new one; made when missing.

        Returns:
            The subscription as it is kept, and the new secret.

        Raises:
            InvalidArgument: the secret is none.
        """
        now = self._clock.now()
        text = new_secret() if secret is None else check_secret(secret)
        old = tuple(
            msgspec.structs.replace(one, until=min(now + overlap, one.until or LATEST))
            for one in subscription.secrets
            if one.until is None or now < one.until
        )
        # A signature for each travels with every request: more than a few nobody can use.
        secrets = (Secret(text, now), *(one for one in old if overlap))[:5]
        return await self.keep(msgspec.structs.replace(subscription, secrets=secrets)), text

    async def delete(self, namespace: str | None, name: str) -> bool:
        """Delete a subscription; return whether there was one. Its messages stay in the queue."""
        key = key_of(namespace, name)
        gone = await self._ask(Outcomes, Cancel(SUBSCRIPTIONS, [key]))
        await self.forget_circuit(key)
        return gone.outcomes[0].done

    async def still(self, subscription: Subscription) -> bool:
        """Tell whether a subscription is as it is known here."""
        found = await self._ask(Found, Find(SUBSCRIPTIONS, [subscription.key]))
        known = _decoded(found.messages[0], Subscription)
        return known is not None and known.changed == subscription.changed

    # What servers tell each other.

    async def circuits(self) -> dict[str, Circuit]:
        """Return the circuits that are open, or were, by the keys of their subscriptions."""
        page = await self._ask(Page, Scan(CIRCUITS, limit=MOST))
        return {m.id: msgspec.json.decode(m.data, type=Circuit) for m in page.messages}

    async def circuit(self, key: str) -> Circuit:
        """Return the circuit of one subscription, as it was last told."""
        found = await self._ask(Found, Find(CIRCUITS, [key]))
        return _decoded(found.messages[0], Circuit) or Circuit()

    async def tell_circuit(self, key: str, circuit: Circuit) -> None:
        """Let all servers know how it stands with a receiver."""
        await self._put(CIRCUITS, key, circuit)

    async def forget_circuit(self, key: str) -> None:
        """Let it be closed."""
        await self._ask(Outcomes, Cancel(CIRCUITS, [key]))

    async def present(self, holder: str) -> list[str]:
        """Say that a server is there, and return all that are, in the same order for each."""
        item = Item(holder, b"{}", delay=PRESENT)
        await self._ask(Outcomes, Put(PRESENCE, [item], "replace"))
        page = await self._ask(Page, Scan(PRESENCE, limit=MOST))
        # Judged by the store's clock alone: what was due before we came has not been seen since.
        now = max((m.due for m in page.messages if m.id == holder), default=PRESENT) - PRESENT
        there = sorted(m.id for m in page.messages if m.due > now or m.id == holder)
        if gone := [m.id for m in page.messages if m.due <= now - 60_000]:
            await self._ask(Outcomes, Cancel(PRESENCE, gone))
        return there

    async def leave(self, holder: str) -> None:
        """Say that a server is leaving."""
        await self._ask(Outcomes, Cancel(PRESENCE, [holder]))

    async def _all(self, queue: str, kind: type[T]) -> list[T]:
        page = await self._ask(Page, Scan(queue, limit=MOST))
        found = sorted(page.messages, key=lambda message: message.id)
        return [msgspec.json.decode(message.data, type=kind) for message in found]

    async def _put(self, queue: str, id: str, record: msgspec.Struct) -> None:
        item = Item(id, msgspec.json.encode(record), at=LATEST)
        await self._ask(Outcomes, Put(queue, [item], "replace"))

    async def _ask(self, kind: type[R], command: Command) -> R:
        reply = await self._lane.acall(command)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply

    async def _must_find(self) -> None:
        capabilities = await asyncio.to_thread(lambda: self._lane.capabilities)
        if not capabilities.random_access:
            raise Unsupported("this store cannot be looked into, so it cannot keep subscriptions")


def _decoded(message: Message | None, kind: type[T]) -> T | None:
    return None if message is None else msgspec.json.decode(message.data, type=kind)


def share(total: int, place: int, among: int, turn: int) -> int:
    """Return how much of a whole one server gets, so that all shares add up to it.

    Args:
        total: the whole.
        place: which server it is, counted from 0.
        among: how many there are.
        turn: with whom to begin when it cannot be divided; the same for each server.

    Example:
        >>> [share(5, place, 3, turn=1) for place in range(3)]
        [1, 2, 2]
    """
    each, rest = divmod(total, among)
    return each + ((place - turn) % among < rest)
