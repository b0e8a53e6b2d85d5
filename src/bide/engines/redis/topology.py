"""Which server has which slot: a single server, the master of a Sentinel group, or a cluster."""

from collections.abc import Callable, Iterable
from typing import Any

from bide.engines.redis.keys import SLOTS
from bide.engines.redis.sentinel import Address, Sentinels
from bide.engines.redis.settings import Settings
from bide.model.errors import StoreError, StoreUnavailable

Ask = Callable[[Address], Any]
"""Asks a node for the map of its cluster."""

First = Callable[[Address], Any]
"""Sorts addresses, the best to ask first."""


def topology_of(settings: Settings) -> "Topology":
    """Return the topology of a store."""
    if settings.cluster is not None:
        return Cluster(settings.cluster)
    if settings.sentinels is not None:
        return SentinelGroup(settings.sentinels)
    return Topology(settings.address)


class Topology:
    """Maps slots to addresses: here, a single server has all of them.

    Args:
        address: its address, as far as it is known.
    """

    def __init__(self, address: Address | None = None) -> None:
        self.address = address
        """The one server that has all slots; `None` while it is not known, and for a cluster."""

    @property
    def masters(self) -> frozenset[Address]:
        """The servers that have slots, as far as is known.

        Raises:
            StoreUnavailable: it is not known where the server is.
        """
        address = self.owner(0)
        return frozenset(() if address is None else (address,))

    def owner(self, slot: int) -> Address | None:
        """Return which server has a slot; `None` if none has it.

        Raises:
            StoreUnavailable: it is not known where the server is.
        """
        return self.address

    def moved(self, slot: int, to: Address) -> None:
        """Note that a node of a cluster says where a slot is now."""

    def refresh(self, ask: Ask, first: First) -> bool:
        """Find out which server has which slot; return whether that has changed.

        Raises:
            StoreError: none tells it.
        """
        return False

    def doubt(self) -> None:
        """Note that what was told last was of no use."""

    def close(self) -> None:
        """Stop watching."""


class SentinelGroup(Topology):
    """A group of servers of which the sentinels know the master.

    Its thread asks them once a second: a master that was cut off goes on answering.
    """

    def __init__(self, sentinels: Sentinels) -> None:
        super().__init__()
        self._sentinels = sentinels
        sentinels.watch.add(self._see)

    def owner(self, slot: int) -> Address | None:
        """Return the master."""
        return self.address or self._learn()

    def refresh(self, ask: Ask, first: First) -> bool:
        """Ask the sentinels for the master."""
        before = self.address
        return self._learn() != before

    def doubt(self) -> None:
        """Ask for the master again the next time, and another sentinel first."""
        self.address = None
        self._sentinels.doubt()

    def close(self) -> None:
        """Stop watching."""
        self._sentinels.watch.remove(self._see)

    def _learn(self) -> Address:
        self.address = master = self._sentinels.master()
        return master

    def _see(self, masters: frozenset[Address]) -> None:
        if self.address is not None and self.address not in masters:
            self.address = None  # the next command looks for the master


class Cluster(Topology):
    """The map of a cluster.

    Args:
        seeds: the nodes that the URL names.
    """

    def __init__(self, seeds: Iterable[Address]) -> None:
        super().__init__()
        self._seeds = tuple(seeds)
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes: frozenset[Address] = frozenset()
        self._masters: frozenset[Address] = frozenset()

    @property
    def masters(self) -> frozenset[Address]:
        """The masters of all slots."""
        return self._masters

    def owner(self, slot: int) -> Address | None:
        """Return the master of a slot."""
        return self._owners[slot]

    def moved(self, slot: int, to: Address) -> None:
        """Note that another node has a slot."""
        self._owners[slot] = to

    def refresh(self, ask: Ask, first: First) -> bool:
        """Ask one node after the other for the map."""
        trouble: StoreError = StoreUnavailable("the cluster has no nodes")
        known = [*self._seeds, *sorted(self._nodes - set(self._seeds))]
        for address in sorted(known, key=first):
            try:
                return self._read(address, ask(address))
            except StoreError as error:
                trouble = error
        raise trouble

    def _read(self, asked: Address, answer: Any) -> bool:
        owners: list[Address | None] = [None] * SLOTS
        nodes: set[Address] = set()
        for first, last, *servers in answer:
            # A node that does not know its own name is where it was asked.
            found = [
                (host if (host := (node[0] or b"").decode()) not in ("", "?") else asked[0],
                 int(node[1]))
                for node in servers
            ]  # fmt: skip
            owners[first : last + 1] = [found[0]] * (last + 1 - first)
            nodes.update(found)
        changed = owners != self._owners
        self._owners = owners
        self._masters = frozenset(owner for owner in owners if owner is not None)
        self._nodes = frozenset(nodes)
        return changed
