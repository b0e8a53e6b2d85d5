"""The nodes of a cluster: a connection to each, those that are away, and who has what."""

import logging
import time
from typing import NamedTuple

from redis import exceptions as raised

from bide.engines.redis.cluster.slots import Slots
from bide.engines.redis.faults import translate
from bide.engines.redis.link import Link, Lost
from bide.engines.redis.settings import Address, Settings
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["Nodes"]

QUICK = 1.0
"""How many seconds a node has to answer that was lost, so that nobody waits for it for long."""

REST, LONGEST = 1.0, 16.0
"""For how many seconds a node that is away is left alone; longer each time if it is silent."""

PAUSE = 0.1
"""Within so many seconds the map is asked for once."""

_log = logging.getLogger("bide.redis")


class _Away(NamedTuple):
    """A node that does not answer: why, until when it is left alone, and for how long."""

    error: StoreError
    until: float
    rest: float


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
        self._away: dict[Address, _Away] = {}
        self._doubted: set[Address] = set()
        self._asked = 0.0
        self.slots = Slots(settings.cluster or ())

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def link(self, address: Address, *, hurried: bool = False) -> Link:
        """Return a connection to a node.

        Args:
            address: where it is.
            hurried: not to wait for long for one that was lost. Others wait a little longer each
                time, in case it is slow.

        Raises:
            StoreError: it does not answer; one that did not a moment ago is not asked again.
        """
        found = self._links.get(address)
        if found is not None and found.open:
            return found
        away = self._away.get(address)
        if away is not None and time.monotonic() < away.until:
            raise away.error
        settings = self._settings.of_node(address)
        begin = time.monotonic()
        doubtful = away is not None or address in self._doubted
        patience = QUICK if hurried or away is None else max(QUICK, away.rest)
        try:
            link = Link(settings.hurried(patience) if doubtful else settings)
            if doubtful:  # it answers: from now on it may take its time
                link.close()
                link = Link(settings)
        except StoreError as error:
            now = time.monotonic()
            rest = REST
            if away is not None and now - begin > REST / 10:  # each try costs others their time
                rest = min(2 * away.rest, LONGEST)
            self._away[address] = _Away(error, now + rest, rest)
            raise
        self._away.pop(address, None)
        self._doubted.discard(address)
        self._links[address] = link
        return link

    def lost(self, address: Address) -> None:
        """A connection broke; whether the node is away shows when it is connected to anew."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
            self._doubted.add(address)

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
                answer = self.link(address, hurried=True).ask("CLUSTER", "SLOTS")
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
