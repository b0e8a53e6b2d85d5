"""Which server has which slot: a single server, the master of a Sentinel group, or a cluster."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from bide.engines.redis.keys import SLOTS
from bide.engines.redis.sentinel import Sentinels
from bide.engines.redis.settings import Address, Settings
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["Cluster", "SentinelGroup", "SingleServer", "Topology", "topology_of"]

Ask = Callable[[Address], Any]
"""Asks a node for the map of its cluster."""


class Topology(Protocol):
    """Maps slots to addresses. A single server is a cluster with one node."""

    masters: frozenset[Address]
    """The servers that have slots, as far as is known."""

    def owner(self, slot: int) -> Address | None:
        """Return which server has a slot; `None` if none has it.

        Raises:
            StoreUnavailable: it is not known where the server is.
        """

    def moved(self, slot: int, to: Address) -> None:
        """Note that a server says where a slot is now."""

    def refresh(self, ask: Ask, candidates: Callable[[Iterable[Address]], list[Address]]) -> bool:
        """Find out which server has which slot; return whether that has changed.

        Args:
            ask: asks a node for the map.
            candidates: sorts addresses, the best to ask first.

        Raises:
            StoreError: none tells it.
        """

    def doubt(self) -> None:
        """Note that what was told last was of no use."""

    def close(self) -> None:
        """Stop watching."""


def topology_of(settings: Settings, moved: Callable[[], None]) -> Topology:
    """Return the topology of a store.

    Args:
        settings: what the URL says.
        moved: called, in a thread of its own, when another server has become the master.
    """
    if settings.cluster is not None:
        return Cluster(settings.cluster)
    if settings.sentinels is not None:
        return SentinelGroup(settings.sentinels, moved)
    return SingleServer(settings.address)


class SingleServer:
    """A server that has all slots."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.masters = frozenset((address,))

    def owner(self, slot: int) -> Address | None:
        """Return its address."""
        return self._address

    def moved(self, slot: int, to: Address) -> None:
        """Do nothing: it is no node of a cluster."""

    def refresh(self, ask: Ask, candidates: Callable[[Iterable[Address]], list[Address]]) -> bool:
        """Return that nothing has changed."""
        return False

    def doubt(self) -> None:
        """Do nothing: there is no other."""

    def close(self) -> None:
        """Do nothing."""


class SentinelGroup:
    """A group of servers of which the sentinels know the master.

    Its thread asks them once a second: a master that was cut off goes on answering.
    """

    def __init__(self, sentinels: Sentinels, moved: Callable[[], None]) -> None:
        self._sentinels = sentinels
        self._moved = moved
        self._master: Address | None = None
        self.masters: frozenset[Address] = frozenset()
        sentinels.watch.add(self._see)

    def owner(self, slot: int) -> Address | None:
        """Return the master."""
        if self._master is None:
            self._learn()
        return self._master

    def moved(self, slot: int, to: Address) -> None:
        """Do nothing: it is no cluster."""

    def refresh(self, ask: Ask, candidates: Callable[[Iterable[Address]], list[Address]]) -> bool:
        """Ask the sentinels for the master."""
        before = self._master
        self._learn()
        return self._master != before

    def doubt(self) -> None:
        """Ask for the master again the next time, and another sentinel first."""
        self._master = None
        self._sentinels.doubt()

    def close(self) -> None:
        """Stop watching."""
        self._sentinels.watch.remove(self._see)

    def _learn(self) -> None:
        self._master = self._sentinels.master()
        self.masters = frozenset((self._master,))

    def _see(self, masters: frozenset[Address]) -> None:
        if self._master is not None and self._master not in masters:
            self._master = None
            self._moved()


class Cluster:
    """The map of a cluster.

    Args:
        seeds: the nodes that the URL names.
    """

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = tuple(seeds)
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes: frozenset[Address] = frozenset()
        self.masters: frozenset[Address] = frozenset()

    def owner(self, slot: int) -> Address | None:
        """Return the master of a slot."""
        return self._owners[slot]

    def moved(self, slot: int, to: Address) -> None:
        """Note that another node has a slot."""
        self._owners[slot] = to

    def refresh(self, ask: Ask, candidates: Callable[[Iterable[Address]], list[Address]]) -> bool:
        """Ask one node after the other for the map."""
        trouble: StoreError = StoreUnavailable("the cluster has no nodes")
        for address in candidates([*self._seeds, *sorted(self._nodes - set(self._seeds))]):
            try:
                return self._read(address, ask(address))
            except StoreError as error:
                trouble = error
        raise trouble

    def doubt(self) -> None:
        """Do nothing: another node is asked anyway."""

    def close(self) -> None:
        """Do nothing."""

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
        self.masters = frozenset(owner for owner in owners if owner is not None)
        self._nodes = frozenset(nodes)
        return changed
