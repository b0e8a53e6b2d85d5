"""The map of a cluster: which node is the master of which slots."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from redis.crc import key_slot

from bide.engines.redis.settings import Address

__all__ = ["SLOTS", "Slots", "copies", "slot_of"]

SLOTS = 16384
"""How many slots a cluster has."""

COPIES = 6
"""In so many parts of the slots there is a copy of what belongs to no queue."""


def slot_of(key: bytes) -> int:
    """Return the slot of a key.

    Example:
        >>> slot_of(b"bide:{orders#0}:meta") == slot_of(b"bide:{orders#0}:dead")
        True
    """
    slot: int = key_slot(key)
    return slot


@cache
def copies(key: bytes) -> tuple[bytes, ...]:
    """Return the names of the copies of a key, one in each sixth of the slots, so that no single
    node has all of them.

    Example:
        >>> copies(b"bide:queues")[:2]
        (b'bide:queues', b'bide:queues:2')
    """
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < COPIES:
        name = b"%s:%d" % (key, number) if number else key
        found.setdefault(slot_of(name) * COPIES // SLOTS, name)
        number += 1
    return tuple(found.values())


class Slots:
    """Which node is the master of which slot, as far as is known.

    Args:
        seeds: the nodes that the URL names.
    """

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = tuple(seeds)
        self._owners: list[Address | None] = [None] * SLOTS
        self.masters: frozenset[Address] = frozenset()
        self.nodes: frozenset[Address] = frozenset()

    @property
    def known(self) -> tuple[Address, ...]:
        """All nodes that one may ask for the map, those of the URL first."""
        return (*self._seeds, *sorted(self.nodes - set(self._seeds)))

    def owner(self, slot: int) -> Address | None:
        """Return the master of a slot; `None` if nobody has it."""
        return self._owners[slot]

    def moved(self, slot: int, to: Address) -> None:
        """A node says that another one has a slot."""
        self._owners[slot] = to

    def read(self, asked: Address, answer: Any) -> bool:
        """Take in what a node answered to CLUSTER SLOTS; return whether the map has changed."""
        owners: list[Address | None] = [None] * SLOTS
        nodes: set[Address] = set()
        for first, last, master, *replicas in answer:
            owner = _address(master, asked)
            owners[first : last + 1] = [owner] * (last + 1 - first)
            nodes |= {owner, *(_address(replica, asked) for replica in replicas)}
        changed = owners != self._owners
        self._owners = owners
        self.masters = frozenset(owner for owner in owners if owner is not None)
        self.nodes = frozenset(nodes)
        return changed


def _address(node: Any, asked: Address) -> Address:
    """Return where a node is; one that does not know its own name is where it was asked."""
    host = (node[0] or b"").decode()
    return (host if host not in ("", "?") else asked[0]), int(node[1])
