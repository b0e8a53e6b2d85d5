"""The servers of a store: which one has which slot, and a connection to each.

A single server, and the master that sentinels name, have all slots.
"""

import threading
import time
from contextlib import suppress
from typing import Any

from redis import exceptions as redis_errors

from bide.engines.redis.connection import RedisConnection
from bide.engines.redis.faults import is_away
from bide.engines.redis.layout import SLOTS
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import RedisSettings
from bide.model.errors import StoreError, StoreUnavailable
from bide.threads import Background

QUICK = 1.0
"""Seconds that a node of a cluster has to answer when its lost connection is replaced."""

CHECK = 1.0
"""How often, in seconds, sentinels are asked, and nodes of a cluster that did not answer."""

PAUSE = 0.1
"""Seconds within which it is asked once which server has which slot."""


class Nodes:
    """Which server has which slot, and connections, made when they are needed.

    A thread watches the sentinels, and the nodes of a cluster that are away: a master that was cut
    off goes on answering, and no caller is to wait for a node that does not.

    Args:
        settings: what the URL says.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._is_cluster = settings.cluster is not None
        is_single = not self._is_cluster and settings.sentinels is None
        self.owners: list[Address | None] = [settings.address if is_single else None]
        """By slot: the server that has it, as far as is known. One server alone has slot 0."""
        self.masters: frozenset[Address] = frozenset([settings.address] if is_single else [])
        """The servers that have slots, as far as is known."""
        self.connections: dict[Address, RedisConnection] = {}
        self.away: dict[Address, StoreError | None] = {}
        """Nodes of a cluster that did not answer, and why; `None`: the thread had an answer."""
        self.doubtful = False
        """Whether sentinels may name another master."""
        self._refreshed_at = 0.0
        """By the monotonic clock."""
        self._closed = threading.Event()
        self._watcher = Background("bide-watcher", self._run)
        if settings.sentinels is not None:
            self._watch()

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self.lose_all()

    def owner(self, slot: int) -> Address | None:
        """Return which server has a slot; `None` if none has it.

        Raises:
            StoreError: no server tells it.
        """
        if not self.masters or self.doubtful:
            self._learn()
        return self.owners[slot]

    def doubt_sentinels(self) -> None:
        """Ask the sentinels before the next command: their last answer was of no use."""
        if self._settings.sentinels is not None:
            self.doubtful = True
            self._settings.sentinels.doubt()

    def refresh(self) -> bool:
        """Find out which server has which slot, not too often; return whether that has changed."""
        now = time.monotonic()
        if now >= self._refreshed_at + PAUSE:
            self._refreshed_at = now
            with suppress(StoreError):  # none tells it
                return self._learn()
        return False

    def _learn(self) -> bool:
        """Ask which server has which slot; return whether that has changed.

        Raises:
            StoreError: no server tells it.
        """
        before = self.owners
        if self._is_cluster:
            self.owners = self._ask_nodes()
        elif self._settings.sentinels is not None:
            self.owners = [self._settings.sentinels.master()]
        self.doubtful = False
        self.masters = frozenset(owner for owner in self.owners if owner is not None)
        for address in {*self.connections, *self.away} - self.masters:
            self.lose(address)
            self.connections.pop(address, None)
            self.away.pop(address, None)
        return self.owners != before

    def _ask_nodes(self) -> list[Address | None]:
        """Ask one node after the other for the map of the cluster; return the owner of each slot.

        Raises:
            StoreError: no node tells it.
        """
        connected = [address for address, each in self.connections.items() if each.usable]
        # Nodes that are away fail soon.
        nodes = dict.fromkeys((*connected, *(self._settings.cluster or ()), *self.masters))
        for address in nodes:
            try:
                ranges = self.connection(address).demand("CLUSTER", "SLOTS")
                return self._owners_of(ranges, address)
            except StoreError as error:
                last_error = error
        raise last_error

    def _owners_of(self, ranges: Any, asked: Address) -> list[Address | None]:
        """Return the owner of each slot, `None` if it has none.

        Args:
            ranges: what CLUSTER SLOTS answers: first and last slot, owner, replicas.
            asked: the node that has answered.
        """
        if not ranges:
            text = f"{self._settings.shown}: no node has any slot: see `redis-cli --cluster create`"
            raise StoreUnavailable(text) from redis_errors.ConnectionError(text)
        owners: list[Address | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_replicas in ranges:
            # A node that does not know its own name is where it was asked.
            name = (host or b"").decode().replace("?", "") or asked[0]
            owners[first : last + 1] = [(name, int(port))] * (last + 1 - first)
        return owners

    # Connections.

    def connection(self, address: Address) -> RedisConnection:
        """Return a connection to a server.

        Raises:
            StoreError: no connection can be made. If a node of a cluster did not answer, a thread
                goes on trying, so that no caller waits for it.
        """
        connection = self.connections.get(address)
        if connection is not None and connection.usable:
            return connection
        if connection is not None:
            connection.close()  # if it is open still, an interrupt has left answers on it
        new = self._connect(address, lost=connection)
        self.connections[address] = new
        return new

    def _connect(self, address: Address, lost: RedisConnection | None) -> RedisConnection:
        """Connect to a server; `lost`: the connection that the new one replaces.

        Raises:
            StoreError: see `connection`.
        """
        away = self.away.get(address)
        if away is not None:
            raise away.with_traceback(None)  # else the traceback would grow each time
        # A node that is there with `None` was away, and has answered the thread: it may be slow,
        # and gets the usual time.
        is_quick = self._is_cluster and lost is not None and address not in self.away
        settings = self._settings.hurried(QUICK) if is_quick else self._settings
        try:
            connection = RedisConnection(settings, address, lost)
        except StoreError as error:
            self.doubt_sentinels()
            if self._is_cluster and is_away(error):
                self.away[address] = error
                self._watch()
            raise
        self.away.pop(address, None)
        connection.socket.settimeout(self._settings.arguments["socket_timeout"])
        return connection

    def lose(self, address: Address) -> None:
        """Close a connection; whether the server is away shows at the next one."""
        if (connection := self.connections.get(address)) is not None:
            connection.close()

    def lose_all(self) -> None:
        """Break off all connections."""
        for address in list(self.connections):
            self.lose(address)

    # The thread.

    def _watch(self) -> None:
        """Start the thread, unless it runs."""
        if not self._watcher.was_started:
            self._watcher.ensure()

    def _run(self) -> None:
        """Watch the sentinels, and nodes that are away, until this was closed."""
        sentinels = self._settings.sentinels
        while not self._closed.wait(CHECK):
            if sentinels is not None:
                named = sentinels.look()
                if named and self.masters - named:  # callers use one that is no master any more
                    self.doubtful = True
            for address, error in list(self.away.items()):
                if error is not None:
                    with suppress(StoreError):  # it is away still
                        RedisConnection(self._settings, address).close()
                        self.away[address] = None
        if sentinels is not None:
            sentinels.close()
