"""The nodes of a cluster: a connection to each, those that are away, and who has what."""

import logging
import time

from redis import exceptions as raised

from bide.engines.redis.cluster.slots import Slots
from bide.engines.redis.faults import translate
from bide.engines.redis.link import Link, Lost
from bide.engines.redis.settings import Address, Settings
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["Nodes"]

QUICK = 0.5
"""How many seconds a node has to answer that was away, so that others do not wait for it."""

REST = 1.0
"""For how many seconds a node that is away is left alone."""

PAUSE = 0.1
"""Within so many seconds the map is asked for once."""

_log = logging.getLogger("bide.redis")


class Nodes:
    """Connections to the nodes of a cluster, made when they are needed.

    Args:
        settings: the nodes that the URL names, and how to connect to any.

    Raises:
        StoreError: none of them answers, or they are no cluster.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._links: dict[Address, Link] = {}
        self._away: dict[Address, tuple[float, StoreError]] = {}
        self._asked = 0.0
        self.slots = Slots(settings.cluster or ())

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def link(self, address: Address) -> Link:
        """Return a connection to a node.

        Raises:
            StoreError: it does not answer; one that did not a moment ago is not asked again.
        """
        found = self._links.get(address)
        if found is not None and found.open:
            return found
        until, error = self._away.get(address, (0.0, None))
        if error is not None and time.monotonic() < until:
            raise error
        settings = self._settings.of_node(address)
        try:
            link = Link(settings if error is None else settings.hurried(QUICK))
        except StoreError as trouble:
            self._away[address] = time.monotonic() + REST, trouble
            raise
        if error is not None:  # it was made in a hurry
            link.close()
            del self._away[address]
            link = Link(settings)
        self._links[address] = link
        return link

    def lost(self, address: Address) -> None:
        """A connection broke; whether the node is away shows when it is connected to anew."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    def refresh(self, *, doubted: Address | None = None) -> bool:
        """Ask for the map, not too often; return whether it has changed.

        Args:
            doubted: a node that is asked last.

        Raises:
            StoreError: no node tells it.
        """
        now = time.monotonic()
        if now < self._asked + PAUSE:
            return False
        self._asked = now
        candidates = sorted(self.slots.known, key=lambda address: self._order(address, doubted))
        trouble: StoreError | None = None
        for address in candidates:
            try:
                answer = self.link(address).ask("CLUSTER", "SLOTS")
            except Lost as lost:
                self.lost(address)
                trouble = trouble or StoreUnavailable(f"{self._settings.shown}: {lost.cause}")
                continue
            except StoreError as error:
                trouble = trouble or error
                continue
            if isinstance(answer, raised.ResponseError):
                raise translate(answer, self._settings.shown)
            changed = self.slots.read(address, answer)
            if changed:
                self._drop_strangers()
            return changed
        assert trouble is not None
        raise trouble

    def _order(self, address: Address, doubted: Address | None) -> tuple[bool, bool, bool]:
        link = self._links.get(address)
        return address == doubted, address in self._away, link is None or not link.open

    def _drop_strangers(self) -> None:
        """Close connections to what is no master any more."""
        for address in set(self._links) - self.slots.masters:
            self.lost(address)
