"""Connections to the servers of a store, one to each, and those servers that are away."""

import math
import threading
import time
from contextlib import suppress

from bide.engines.redis.connection import Connection, Lost, is_away
from bide.engines.redis.faults import Refusal, translate
from bide.engines.redis.settings import Address, Settings, shown_address
from bide.engines.redis.topology import topology_of
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["QUICK", "Nodes"]

QUICK = 1.0
"""Seconds that a node of a cluster has to answer after its connection was lost."""

REST = 1.0
"""Seconds for which a node of a cluster that does not answer is left alone."""

PAUSE = 0.1
"""Seconds within which the map is asked for once."""


class Nodes:
    """Connections to the servers of a store, made when they are needed.

    Args:
        settings: what the URL says.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._many = settings.cluster is not None
        self._open: dict[Address, Connection] = {}
        self._lost: dict[Address, Connection] = {}
        self._away: dict[Address, tuple[StoreError, float]] = {}
        self._found: dict[Address, Connection] = {}
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._asked = 0.0
        self.topology = topology_of(settings)

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self.topology.close()
        for address in (*self._away, *self._found):
            self._forget(address)
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def connection(self, address: Address) -> Connection:
        """Return a connection to a server.

        Raises:
            StoreError: there is none. A node of a cluster that did not answer a moment ago is not
                asked again, and one that was silent is waited for in a thread.
        """
        found = self._open.get(address)
        if found is None or not found.open:
            found = self._found.pop(address, None) or self._connect(address)
            self._away.pop(address, None)
            self._lost.pop(address, None)
            self._open[address] = found
        return found

    def _connect(self, address: Address) -> Connection:
        lost, settings = self._lost.get(address), self._settings
        if not self._many:
            try:
                return Connection(settings, address, lost)
            except StoreError:
                self.topology.doubt()
                raise
        error, until = self._away.get(address, (None, 0.0))
        if error is not None and time.monotonic() < until:
            raise error
        doubtful = error is not None or lost is not None
        begin = time.monotonic()
        try:
            found = Connection(settings.hurried(QUICK) if doubtful else settings, address, lost)
        except StoreError as error:
            now = time.monotonic()
            self._away[address] = error, now + REST
            if is_away(error) and now - begin > REST / 10:  # each try would cost callers their time
                away = self._away[address] = error, math.inf
                args = address, away, lost
                seek = threading.Thread(target=self._seek, args=args, daemon=True)
                seek.name = "bide-seeker"
                seek.start()
            raise
        found.settle(settings.arguments["socket_timeout"])  # it answers: now it may take its time
        return found

    def _seek(
        self, address: Address, away: tuple[StoreError, float], lost: Connection | None
    ) -> None:
        """Wait for a silent node, in a thread of its own, so that no caller has to."""
        while not self._closed.wait(REST) and self._away.get(address) is away:
            with suppress(StoreError):
                found = Connection(self._settings, address, lost)
                with self._lock:
                    if self._away.get(address) is away:
                        self._found[address] = found
                        return
                found.close()  # nobody waits for it any more

    def _forget(self, address: Address) -> None:
        """Wait no longer for a node that was away."""
        with self._lock:
            self._away.pop(address, None)
            found = self._found.pop(address, None)
        if found is not None:
            found.close()

    def lose(self, address: Address) -> None:
        """Note that a connection broke; whether the server is away shows at the next one."""
        found = self._open.pop(address, None)
        if found is not None:
            found.close()
            self._lost[address] = found

    def lose_all(self) -> None:
        """Break off all connections."""
        for address in list(self._open):
            self.lose(address)

    def refresh(self) -> bool:
        """Find out which server has which slot, not too often; return whether that has changed.

        Raises:
            StoreError: none tells it.
        """
        now = time.monotonic()
        if now < self._asked + PAUSE:
            return False
        self._asked = now
        # Those are asked first to which there is a connection, and last those that are away.
        open_ = {address for address, found in self._open.items() if found.open}
        changed = self.topology.refresh(self._ask, lambda a: (a in self._away, a not in open_))
        if changed:
            masters = self.topology.masters
            for address in set(self._open) - masters:
                self.lose(address)
            for address in set(self._lost) - masters:
                del self._lost[address]
            for address in set(self._away) - masters:
                self._forget(address)
        return changed

    def _ask(self, address: Address) -> object:
        shown = self._settings.shown
        try:
            answer = self.connection(address).ask("CLUSTER", "SLOTS")
        except Lost as lost:
            self.lose(address)
            error = StoreUnavailable(f"{shown} ({shown_address(address)}): {lost.cause}")
            raise error from lost.cause
        if isinstance(answer, Refusal):
            raise translate(answer, shown)
        return answer
