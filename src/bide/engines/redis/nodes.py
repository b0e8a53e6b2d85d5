"""Connections to the servers of a store, one to each, and those servers that are away."""

import threading
import time

from bide.engines.redis.connection import Connection, Lost, is_away
from bide.engines.redis.faults import Refusal, translate
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import Settings, shown_address
from bide.engines.redis.topology import topology_of
from bide.model.errors import StoreError, StoreUnavailable

QUICK = 1.0
"""Seconds that a node of a cluster has to answer after its connection was lost."""

REST = 1.0
"""Seconds after which a node of a cluster that did not answer is tried again."""

PAUSE = 0.1
"""Seconds within which the map is asked for once."""


class _Away:
    """A node of a cluster that does not answer, while a thread seeks it."""

    def __init__(self, error: StoreError) -> None:
        self.error = error
        self.found: Connection | None = None
        """The connection, once it answers again."""


class Nodes:
    """Connections to the servers of a store, made when they are needed.

    Args:
        settings: what the URL says.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._many = settings.cluster is not None
        self._open: dict[Address, Connection] = {}
        self.latest: Connection | None = None
        """The connection that was asked for last."""
        self._lost: dict[Address, Connection] = {}
        self._away: dict[Address, _Away] = {}
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._asked = 0.0
        self.topology = topology_of(settings)

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self.topology.close()
        for address in list(self._away):
            self._forget(address)
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def connection(self, address: Address) -> Connection:
        """Return a connection to a server.

        Raises:
            StoreError: there is none. A node of a cluster that did not answer is sought in a
                thread, so that no caller waits for it.
        """
        found = self._open.get(address)
        if found is None or not found.open:
            found = self._open[address] = self._connect(address)
            self._lost.pop(address, None)
        self.latest = found
        return found

    def _connect(self, address: Address) -> Connection:
        away, lost, settings = self._away.get(address), self._lost.get(address), self._settings
        if away is not None:
            if away.found is None:
                raise away.error.with_traceback(None)  # else each one would add to it
            del self._away[address]
            return away.found
        try:
            if not self._many or lost is None:
                return Connection(settings, address, lost)
            found = Connection(settings.hurried(QUICK), address, lost)
        except StoreError as error:
            if not self._many:
                self.topology.doubt()
            elif is_away(error):
                away = self._away[address] = _Away(error)
                seek = threading.Thread(target=self._seek, args=(address, away, lost), daemon=True)
                seek.name = "bide-seeker"
                seek.start()
            raise
        found.settle(settings.arguments["socket_timeout"])  # it answers: now it may take its time
        return found

    def _seek(self, address: Address, away: _Away, lost: Connection | None) -> None:
        """Try again and again, until the node answers or nobody wants it."""
        while not self._closed.wait(REST) and self._away.get(address) is away:
            try:
                found = Connection(self._settings, address, lost)
            except StoreError as error:
                away.error = error
                continue
            with self._lock:
                if self._away.get(address) is away:
                    away.found = found
                    return
            found.close()

    def _forget(self, address: Address) -> None:
        """Seek a node no longer."""
        with self._lock:
            away = self._away.pop(address, None)
        if away is not None and away.found is not None:
            away.found.close()

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
