"""What the servers of one store share about their subscriptions, through the store."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from bide.lane.lane import Lane
from bide.model.commands import Cancel, Command, Purge, Put, Scan
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item, Message
from bide.model.replies import Affected, Outcomes, Page, Reply, expect
from bide.model.times import LATEST
from bide.observing.tally import total
from bide.targets.http.receiver import Circuit
from bide.targets.http.stats import Deliveries

CIRCUITS = InternalQueue.CIRCUITS.value
PUSHERS = InternalQueue.PUSHERS.value

MOST = 10_000
"""The maximum number of circuits, and of servers, that are read."""

PRESENT = 6_000
"""Milliseconds that a server counts as running after its last sign of life."""

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

Figures = dict[str, Deliveries]
"""What a server has sent, by subscription."""


class Shared:
    """What is kept in the store, for all servers.

    Args:
        lane: the lane to the store.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    async def ask(self, reply_type: type[R], command: Command) -> R:
        """Execute a command; return its reply, which is of the type that the command has."""
        return expect(reply_type, await self._lane.acall(command))


class Peers(Shared):
    """The servers that push from a store, and their reports about receivers."""

    async def circuits(self) -> dict[str, Circuit]:
        """Return the circuits that are or were open, by subscription."""
        page = await self.ask(Page, Scan(CIRCUITS, limit=MOST))
        return {message.id: _decoded(message, Circuit) for message in page.messages}

    async def store_circuits(self, circuits: Mapping[str, Circuit]) -> None:
        """Store circuits for all servers, by subscription."""
        items = [
            Item(name, msgspec.json.encode(circuit), at=LATEST)
            for name, circuit in circuits.items()
        ]
        await self.ask(Outcomes, Put(CIRCUITS, items, "replace"))

    async def forget_circuit(self, name: str) -> None:
        """Close the circuit of a subscription for all servers."""
        await self.ask(Outcomes, Cancel(CIRCUITS, [name]))

    async def present(self, holder: str, figures: Mapping[str, Deliveries] = {}) -> list[str]:
        """Store that a server is running, and return all that are, in the same order for each.

        Args:
            holder: the server.
            figures: its figures, by subscription.
        """
        # Its message is due, and so no longer delayed, when the server counts as stopped.
        item = Item(holder, msgspec.json.encode(figures), delay=PRESENT)
        await self.ask(Outcomes, Put(PUSHERS, [item], "replace"))
        page = await self.ask(Page, Scan(PUSHERS, limit=MOST))
        holders = {message.id for message in page.messages if message.state == "delayed"}
        if len(holders) < len(page.messages):  # servers died without a `leave`
            await self.ask(Affected, Purge(PUSHERS, "ready"))
        return sorted({holder, *holders})  # another server may have deleted ours meanwhile

    async def leave(self, holder: str) -> None:
        """Store that a server has stopped."""
        await self.ask(Outcomes, Cancel(PUSHERS, [holder]))

    async def deliveries(self) -> Figures:
        """Return the figures of the running servers."""
        page = await self.ask(Page, Scan(PUSHERS, limit=MOST))
        return total(
            _decoded(message, Figures) for message in page.messages if message.state == "delayed"
        )


def share(total: int, place: int, among: int, turn: int) -> int:
    """Return the share of one server; the shares of all add up to the total.

    Args:
        total: what is shared.
        place: the number of the server, from 0.
        among: how many servers there are.
        turn: the server that gets the first of the rest; the same number on each server.

    Example:
        >>> [share(5, place, 3, turn=1) for place in range(3)]
        [1, 2, 2]
    """
    each, rest = divmod(total, among)
    places_behind_turn = (place - turn) % among
    return each + 1 if places_behind_turn < rest else each


def _decoded(message: Message, report_type: type[T]) -> T:
    """Decode the report of a server; one that is damaged counts as an empty one."""
    try:
        return msgspec.json.decode(message.data, type=report_type)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return report_type()
