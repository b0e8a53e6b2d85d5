"""How a process hears of what others put into a cluster: connections that listen at all masters.

A script tells a lane by a channel, and is told whether anybody heard; that counts who listens at
its own node only. So a lane listens at each. What is published at one goes to all nodes, and is
heard several times: all but the first are dropped.
"""

import os
import select
import threading
import time
from contextlib import suppress
from typing import Any

from redis import exceptions as raised

from bide.engines.redis.bell import HEARTBEAT, LOOK, Where, ask_again, read_hint, warn_deaf
from bide.engines.redis.cluster.nodes import QUICK, Nodes
from bide.engines.redis.cluster.slots import slot_of
from bide.engines.redis.keys import CHANNEL, meta_key, script_keys
from bide.engines.redis.link import Lost, pack
from bide.engines.redis.scripts import load_all
from bide.engines.redis.settings import Address, Settings
from bide.engines.redis.verbs.job import Call
from bide.model.errors import StoreError

__all__ = ["ClusterBell"]

CHECK = 5.0
"""After so many seconds the listener sees whether other nodes have become masters."""

ECHO = 1.0
"""For how many seconds the same hint from another node is taken for its echo."""


class ClusterBell:
    """The listening end in one process.

    Args:
        settings: the nodes that the URL names.
        lane: who listens; the name of its channel.

    Raises:
        StoreError: no node of the cluster can be reached.
    """

    def __init__(self, settings: Settings, lane: str) -> None:
        # Hints are worth no waiting: while one node is waited for, nobody hears the others.
        self._settings = settings = settings.hurried(QUICK)
        self._lane = lane
        self._watched: set[str] = set()
        self._told: dict[str, set[Where]] = {}
        self._heard: dict[bytes, tuple[Address, float]] = {}
        self._at: dict[Address, Any] = {}
        self._pinged: dict[Address, float] = {}
        self._checked = 0.0
        self._closed = False
        self._lock = threading.Lock()
        self._hearing = threading.Lock()
        self._nodes = Nodes(settings)
        self._wake_out, self._wake_in = os.pipe()
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes, and return it; an empty list once the bell is closed."""
        with self._hearing:
            while not self._closed:
                if hints := self._hear():
                    return hints
            self._hang_up()
            return []

    def decline(self, queue: str, wake: int) -> None:
        """Pass on a hint, since nobody waits for this queue here any more."""
        script = load_all()["decline"]
        for where in self._told.pop(queue, set()):
            call = Call("decline", queue, (), *where)
            keys = script_keys("decline", queue, self._lane, call.shard)
            address = self._nodes.slots.owner(slot_of(meta_key(queue, call.shard)))
            if address is None:
                continue
            with self._lock, suppress(StoreError, Lost):  # time makes up for it
                command = "EVALSHA", script.sha, len(keys), *keys, "", "", self._lane, call.label
                ask_again(self._nodes.link(address), *command)

    def watch(self, queue: str) -> None:
        """A claim may wait for this queue: hints for it count."""
        self._watched.add(queue)

    def renew(self, _: str) -> None:
        """Slots have moved: see soon whether other nodes have become masters."""
        self._checked = 0.0

    def close(self) -> None:
        """Stop listening: `listen` returns."""
        if self._closed:
            return
        self._closed = True
        os.write(self._wake_in, b"!")
        if self._hearing.acquire(blocking=False):  # else whoever listens hangs up
            self._hang_up()
            self._hearing.release()

    def _hang_up(self) -> None:
        for address in list(self._at):
            self._leave(address)
        with self._lock:
            self._nodes.close()
        with suppress(OSError):
            os.close(self._wake_out)
            os.close(self._wake_in)

    def _hear(self) -> list[tuple[str, int]]:
        """Return what is heard within a moment."""
        if time.monotonic() > self._checked + CHECK:
            try:
                if self._check():
                    return self._anything()
            except StoreError:  # nobody tells the map; those who listen go on
                self._checked = time.monotonic()
        for address, connection in list(self._at.items()):
            try:
                while connection.can_read(timeout=0):
                    hint = self._take(address, connection.read_response(disable_decoding=True))
                    if hint is not None:
                        return [hint]
            except (raised.RedisError, OSError):
                self._leave(address)
                self._checked = time.monotonic() - CHECK + LOOK
                return self._anything()
        sockets = [connection._sock for connection in self._at.values()]
        with suppress(OSError, ValueError):  # one was closed: it shows in the next round
            select.select([*sockets, self._wake_out], [], [], LOOK)
        return []

    def _take(self, address: Address, answer: Any) -> tuple[str, int] | None:
        self._pinged[address] = time.monotonic()
        if answer[0] != b"message":
            return None
        hint: bytes = answer[2]
        now = time.monotonic()
        first, heard = self._heard.get(hint, (address, 0.0))
        if first != address and now < heard + ECHO:
            return None
        if len(self._heard) > 1000:
            self._heard.clear()
        self._heard[hint] = address, now
        queue, where, wake = read_hint(hint)
        self._told.setdefault(queue, set()).add(where)
        return queue, wake

    def _anything(self) -> list[tuple[str, int]]:
        """What was published meanwhile nobody heard: there may be something in each queue."""
        now = time.time_ns() // 1_000_000
        return [(queue, now) for queue in tuple(self._watched)]

    def _check(self) -> bool:
        """Listen at all masters and nowhere else; return whether that is new."""
        self._checked = time.monotonic()
        with self._lock:
            self._nodes.refresh()
        for address in set(self._at) - self._nodes.slots.masters:
            self._leave(address)
        new = False
        for address in self._nodes.slots.masters - set(self._at):
            if self._is_there(address):  # else it is tried again at the next check
                with suppress(raised.RedisError, OSError):
                    self._subscribe(address)
                    new = True
        for address, connection in list(self._at.items()):
            if time.monotonic() > self._pinged[address] + HEARTBEAT + self._settings.timeout:
                self._leave(address)  # it has been silent for too long
            elif time.monotonic() > self._pinged[address] + HEARTBEAT:
                with suppress(raised.RedisError, OSError):
                    connection.send_packed_command([pack("PING", "")], check_health=False)
        return new

    def _is_there(self, address: Address) -> bool:
        with self._lock:
            try:
                self._nodes.link(address).ask("PING")
            except Lost:
                self._nodes.lost(address)
            except StoreError:
                pass
            else:
                return True
        return False

    def _subscribe(self, address: Address) -> None:
        connection = self._settings.of_node(address).connection()
        try:
            connection.connect()
            connection.send_packed_command([pack("SUBSCRIBE", CHANNEL + self._lane)])
            connection.read_response(disable_decoding=True)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, Exception):
                warn_deaf(error, self._settings.shown)
            raise
        self._at[address] = connection
        self._pinged[address] = time.monotonic()

    def _leave(self, address: Address) -> None:
        self._at.pop(address).disconnect()
