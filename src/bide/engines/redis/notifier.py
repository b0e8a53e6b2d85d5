"""How a process learns of puts by others: connections that listen at every server with slots.

A script that changes a queue picks lanes that wait for it, and publishes to their channels. The
server says how many clients received it, but counts only its own clients. So a lane listens at
every master of a cluster. A hint that is published at one goes to all nodes, and arrives several
times: all but the first are dropped. What is published while a connection is away is lost: claims
that wait look again within a second.

Which workers are to stop is published to all lanes. That is rare, and so no claim has to write
which lane it came from. Lanes of other databases of the server hear it too, as channels belong to
none: at worst, one extends the lease of a message of the same name.
"""

import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from bide.engines.bounded_dict import BoundedDict
from bide.engines.redis.connection import RedisConnection
from bide.engines.redis.layout import CHANNEL, EVERYBODY
from bide.engines.redis.nodes import QUICK, Nodes
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import RedisSettings
from bide.engines.redis.wire import ConnectionLost, pack
from bide.logs import logger
from bide.model.ended import message_hint
from bide.model.errors import StoreError

POLL = 1.0
"""Seconds after which the listener sees whether the master is another server."""

CHECK = 5.0
"""Seconds after which the listener asks a cluster for its masters."""

HEARTBEAT = 10.0
"""Seconds of silence after which the listener asks whether a server is still there."""

MAX_HEARD = 1_000
"""How many hints are remembered, to tell echoes."""

ECHO = 1.0
"""Seconds for which the same hint from another node is taken for its echo."""

_log = logger("bide.redis")


class RedisNotifier:
    """The listening end in one process.

    Args:
        settings: what the URL says.
        lane: the name of the lane that listens, and of its channel.

    Raises:
        StoreError: no server can be reached, or lets this user subscribe.
    """

    def __init__(self, settings: RedisSettings, lane: str) -> None:
        self._clustered = settings.cluster is not None
        quick = settings.hurried(QUICK)
        # A wait for one server delays the hints of the others.
        self._settings = quick if self._clustered else settings
        self._channel = CHANNEL + lane
        self._nodes = Nodes(quick)
        # Times are those of the monotonic clock.
        self._heard: BoundedDict[bytes, tuple[Address, float]] = BoundedDict(MAX_HEARD)
        """By hint: the server from which it came, and when it came last."""
        self._connections: dict[Address, RedisConnection] = {}
        """The connections that have subscribed, by server."""
        self._last_signs: dict[Address, float] = {}
        """By server, when it has last said something."""
        self._refreshed_at = 0.0
        """When a cluster was asked for its masters; 0: ask again."""
        self._closed = False
        self._has_seen_other_text = False
        """Whether the log says that texts come which are not of bide."""
        self._hearing = threading.Lock()
        """Held while `listen` runs: `close` waits for its end."""
        self._wake_out, self._wake_in = socket.socketpair()
        """What `close` writes into the second one ends the wait of `listen`."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        try:
            self._check()
            # Once more without hiding the error: the caller is to know why it cannot listen.
            if not self._connections and (address := self._nodes.owner(0)):
                self._subscribe(address)
        except BaseException:
            self.close()
            raise

    @property
    def is_listening(self) -> bool:
        """Whether it has a connection to every master, as far as it knows."""
        listens_somewhere = bool(self._connections)
        return listens_somewhere and self._nodes.masters <= self._connections.keys()

    def listen(self) -> list[tuple[str, int]]:
        """Block until hints come, and return them; an empty list once this was closed.

        Returns:
            The name of a queue each, and when to claim there, in Unix milliseconds.
        """
        hints: list[tuple[str, int]] = []
        with self._hearing:
            while not (hints or self._closed):
                self._check()
                for key, _ in self._selector.select(POLL):
                    connection = key.data
                    if connection is not None:  # else `close` wakes this
                        hints += self._read(connection)
        return hints

    def close(self) -> None:
        """Stop listening: `listen` returns."""
        if self._closed:
            return
        self._closed = True
        self._wake_in.send(b"!")
        with self._hearing:
            for address in list(self._connections):
                self._leave(address)
            self._nodes.close()
            self._selector.close()
            self._wake_out.close()
            self._wake_in.close()

    def _read(self, connection: RedisConnection) -> list[tuple[str, int]]:
        """Read what a server has published; return the hints in it."""
        address = connection.address
        try:
            answers = connection.heard()
        except ConnectionLost:
            self._leave(address)
            return []
        self._last_signs[address] = time.monotonic()
        return [hint for answer in answers for hint in self._take(address, answer)]

    def _take(self, address: Address, answer: Any) -> list[tuple[str, int]]:
        """Return the hints in what a server says; none if it is an echo, or of something else."""
        now = time.monotonic()
        if not isinstance(answer, list) or answer[0] != b"message":
            return []
        _message, _channel, hint = answer
        first_address, last_heard = self._heard.get(hint, (address, 0.0))
        if first_address != address and now < last_heard + ECHO:
            return []
        self._heard[hint] = address, now
        try:
            queue, kind, rest = hint.decode().split(" ", 2)
            if kind in ("end", "stop"):
                ids = rest.split("\n")
                return [(message_hint(queue, id), 0) for id in ids]
            is_of_clock = kind == "at"  # else `rest` is milliseconds from now
            wake = int(rest) if is_of_clock else time.time_ns() // 1_000_000 + int(rest)
            return [(queue, wake)]
        except ValueError:  # any client of the server may publish
            if not self._has_seen_other_text:
                self._has_seen_other_text = True
                _log.warning("a published text is not from bide, and was skipped: %.100r", hint)
            return []

    def _check(self) -> None:
        """Listen at all masters and nowhere else."""
        now = time.monotonic()
        with suppress(StoreError):
            if self._clustered and now > self._refreshed_at + CHECK:
                self._refreshed_at = now
                self._nodes.refresh()
            self._nodes.owner(0)  # asks for the masters, if none is known or another may be it
        masters = self._nodes.masters
        for address in set(self._connections) - masters:
            self._leave(address)
        for address in masters - set(self._connections):
            try:
                if self._clustered:
                    self._nodes.connection(address)  # one that is away is waited for in a thread
                self._subscribe(address)
            except StoreError:
                self._nodes.lose(address)
                self._refreshed_at = 0.0
        for address, connection in list(self._connections.items()):
            seconds_silent = now - self._last_signs[address]
            if seconds_silent > HEARTBEAT + self._settings.timeout:
                self._leave(address)
            elif seconds_silent >= HEARTBEAT:
                try:
                    connection.tell(pack(("PING",)))
                except ConnectionLost:
                    self._leave(address)

    def _subscribe(self, address: Address) -> None:
        """Listen at a server.

        Raises:
            StoreError: it cannot be reached, or does not let this user subscribe.
        """
        connection = RedisConnection(self._settings, address)
        try:
            connection.demand("SUBSCRIBE", self._channel, EVERYBODY)
        except StoreError:
            connection.close()
            raise
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._connections[address], self._last_signs[address] = connection, time.monotonic()

    def _leave(self, address: Address) -> None:
        """Listen at a server no longer."""
        connection = self._connections.pop(address)
        self._selector.unregister(connection.socket)
        connection.close()
