"""The nodes of a cluster: a connection to each, those that are away, and who has what."""

import logging
import threading
import time
from typing import NamedTuple

from redis import exceptions as raised

from bide.engines.redis.cluster.slots import Slots
from bide.engines.redis.faults import translate
from bide.engines.redis.link import Link, Lost, is_away
from bide.engines.redis.settings import Address, Settings
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["QUICK", "Nodes"]

QUICK = 1.0
"""How many seconds a node has to answer that was lost, before somebody else waits for it."""

REST = 1.0
"""For how many seconds a node that does not answer is left alone."""

PAUSE = 0.1
"""Within so many seconds the map is asked for once."""

_log = logging.getLogger("bide.redis")


class _Away(NamedTuple):
    """A node that does not answer: why, and until when it is left alone."""

    error: StoreError
    until: float


class _Seeker:
    """Waits for a silent node in a thread of its own, so that nobody else has to."""

    def __init__(self, settings: Settings, error: StoreError, lost: Link | None) -> None:
        self.error = error
        self._settings = settings
        self._lost = lost
        self._link: Link | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._seek, name="bide-seeker", daemon=True).start()

    def found(self) -> Link:
        """Return the connection, if it has come about.

        Raises:
            StoreError: it has not.
        """
        with self._lock:
            if self._link is None:
                raise self.error
            link, self._link = self._link, None
            return link

    def end(self) -> None:
        """Look no further."""
        self._ended.set()
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    def _seek(self) -> None:
        while not self._ended.wait(REST):
            try:
                link = Link(self._settings, self._lost)
            except StoreError as error:
                self.error = error
                continue
            with self._lock:
                self._link = link
            if self._ended.is_set():
                self.end()
            return


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
        self._lost: dict[Address, Link] = {}
        self._away: dict[Address, _Away] = {}
        self._sought: dict[Address, _Seeker] = {}
        self._doubted: set[Address] = set()
        self._asked = 0.0
        self.slots = Slots(settings.cluster or ())

    def close(self) -> None:
        """Close all connections."""
        for seeker in self._sought.values():
            seeker.end()
        self._sought.clear()
        for link in self._links.values():
            link.close()
        self._links.clear()

    def link(self, address: Address) -> Link:
        """Return a connection to a node.

        Raises:
            StoreError: it does not answer; one that did not a moment ago is not asked again, and
                one that was silent is waited for elsewhere.
        """
        found = self._links.get(address)
        if found is not None and found.open:
            return found
        seeker = self._sought.get(address)
        if seeker is not None:
            link = seeker.found()
            del self._sought[address]
        else:
            link = self._connect(address)
        self._away.pop(address, None)
        self._doubted.discard(address)
        self._links[address] = link
        self._lost.pop(address, None)
        return link

    def _connect(self, address: Address) -> Link:
        away = self._away.get(address)
        if away is not None and time.monotonic() < away.until:
            raise away.error
        settings = self._settings.of_node(address)
        doubtful = away is not None or address in self._doubted
        lost = self._lost.get(address)
        begin = time.monotonic()
        try:
            link = Link(settings.hurried(QUICK) if doubtful else settings, lost)
        except StoreError as error:
            now = time.monotonic()
            self._away[address] = _Away(error, now + REST)
            if is_away(error) and now - begin > REST / 10:  # each try would cost others their time
                self._sought[address] = _Seeker(settings, error, lost)
            raise
        if doubtful:  # it answers: from now on it may take its time
            link.close()
            link = Link(settings)
        return link

    def lost(self, address: Address) -> None:
        """A connection broke; whether the node is away shows when it is connected to anew."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
            self._lost[address] = link
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
        for address in set(self._lost) - self.slots.masters:
            del self._lost[address]
        for address in set(self._sought) - self.slots.masters:
            self._sought.pop(address).end()
