"""What the servers on one store tell each other about their subscriptions, through the store."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from bide.clock import Clock
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Find, Put, Scan
from bide.model.identity import RESERVED
from bide.model.message import Item
from bide.model.moments import LATEST
from bide.model.replies import Found, Outcomes, Page, Reply
from bide.targets.http.circuit import Circuit
from bide.targets.http.deliveries import Deliveries

__all__ = ["Peers", "share"]

CIRCUITS = f"{RESERVED}/circuits"
PRESENCE = f"{RESERVED}/pushers"

MOST = 10_000
"""How many circuits, and how many servers, are looked at."""

PRESENT = 6_000
"""For how many milliseconds a server counts as present after it was last seen."""

R = TypeVar("R", bound=Reply)

Told = dict[str, Deliveries]


class Peers:
    """The servers that push from a store: who is there, and what each has found out.

    Args:
        lane: the way to the store.
        clock: what moments are told by.
    """

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self._lane = lane
        self._clock = clock

    async def circuits(self) -> dict[str, Circuit]:
        """Return the circuits that are open, or were, by the keys of their subscriptions."""
        page = await self._ask(Page, Scan(CIRCUITS, limit=MOST))
        return {m.id: msgspec.json.decode(m.data, type=Circuit) for m in page.messages}

    async def circuit(self, key: str) -> Circuit:
        """Return the circuit of one subscription, as it was last told."""
        (found,) = (await self._ask(Found, Find(CIRCUITS, [key]))).messages
        return Circuit() if found is None else msgspec.json.decode(found.data, type=Circuit)

    async def tell_circuit(self, key: str, circuit: Circuit) -> None:
        """Let all servers know how it stands with a receiver."""
        item = Item(key, msgspec.json.encode(circuit), at=LATEST)
        await self._ask(Outcomes, Put(CIRCUITS, [item], "replace"))

    async def forget_circuit(self, key: str) -> None:
        """Let it be closed."""
        await self._ask(Outcomes, Cancel(CIRCUITS, [key]))

    async def present(self, holder: str, told: Mapping[str, Deliveries] | None = None) -> list[str]:
        """Say that a server is there, and return all that are, in the same order for each.

        Args:
            holder: which server.
            told: what has come of its requests, by the keys of the subscriptions.
        """
        item = Item(holder, msgspec.json.encode(told or {}), delay=PRESENT)
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

    async def deliveries(self) -> Told:
        """Return what the servers that are there have told of their requests."""
        page = await self._ask(Page, Scan(PRESENCE, limit=MOST))
        now = self._clock.now()
        found: Told = {}
        for message in page.messages:
            if message.due > now:
                for key, told in msgspec.json.decode(message.data, type=Told).items():
                    found[key] = found[key].plus(told) if key in found else told
        return found

    async def _ask(self, kind: type[R], command: Command) -> R:
        reply = await self._lane.acall(command)
        assert isinstance(reply, kind), f"a store answered {reply!r}"
        return reply


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
