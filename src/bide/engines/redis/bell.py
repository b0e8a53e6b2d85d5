"""How a process hears of what others put: a channel of its own, and a connection that listens.

The script that changes a queue picks one lane that waits for it and publishes to that lane's
channel. The server tells it whether anybody heard; a lane that is gone is passed over at once.
"""

import threading
import time
from typing import Any

from redis import exceptions as raised

from bide.engines.redis.keys import CHANNEL, shard_keys
from bide.engines.redis.link import Link, Lost, pack
from bide.engines.redis.scripts import load_all
from bide.engines.redis.settings import Settings
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["ChannelBell"]

LOOK = 1.0
"""How often, in seconds, the listener sees whether it was closed while the server was away."""

HEARTBEAT = 30.0
"""After so many seconds of silence the listener asks whether the server is still there."""


class ChannelBell:
    """The listening end in one process.

    Args:
        settings: where the server is.
        lane: who listens; the name of its channel.

    Raises:
        StoreError: the server cannot be reached.
    """

    def __init__(self, settings: Settings, lane: str) -> None:
        self._settings = settings
        self._lane = lane
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._side: Link | None = None
        self._connection: Any = None
        self._subscribe()

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes, and return it; an empty list once the bell is closed."""
        heard = time.monotonic()
        asked = False
        while not self._closed:
            try:
                answer = self._read(LOOK)
            except raised.TimeoutError:
                if not asked and time.monotonic() - heard > HEARTBEAT:
                    asked = self._ping()
                if time.monotonic() - heard > HEARTBEAT + self._settings.timeout:
                    return self._anew()
                continue
            except (raised.RedisError, OSError):
                return self._anew()
            heard, asked = time.monotonic(), False
            if answer[0] == b"message" and answer[2]:
                hint = _read(answer[2])
                self._told.add(hint[0])
                return [hint]
        return []

    def decline(self, queue: str, wake: int) -> None:
        """Pass on a hint, since nobody waits for this queue here any more."""
        script = load_all()["decline"]
        keys = shard_keys(queue, self._lane)[0]
        self._aside("EVALSHA", script.sha, len(keys), *keys, "", "", self._lane, queue)

    def close(self) -> None:
        """Stop listening: `listen` returns."""
        self._closed = True
        self._aside("PUBLISH", CHANNEL + self._lane, "")
        with self._lock:
            if self._side is not None:
                self._side.close()
                self._side = None

    def _aside(self, *command: Any) -> None:
        """Send a command beside the listening; if it does not arrive, time makes up for it."""
        with self._lock:
            try:
                self._side = self._side or Link(self._settings)
                self._side.ask(*command)
            except (StoreError, Lost):
                self._side = None

    def _subscribe(self) -> None:
        connection = self._settings.connection()
        try:
            connection.connect()
            connection.send_packed_command([pack("SUBSCRIBE", CHANNEL + self._lane)])
            connection.read_response(disable_decoding=True)
        except (raised.RedisError, OSError) as error:
            connection.disconnect()
            raise StoreUnavailable(
                f"{self._settings.shown}: cannot subscribe to {CHANNEL}* ({error})"
            ) from error
        self._connection = connection

    def _read(self, seconds: float) -> Any:
        if not self._connection.can_read(timeout=seconds):
            raise raised.TimeoutError
        return self._connection.read_response(disable_decoding=True)

    def _ping(self) -> bool:
        self._connection.send_packed_command(
            [
                pack(
                    "PING",
                )
            ],
            check_health=False,
        )
        return True

    def _anew(self) -> list[tuple[str, int]]:
        """Subscribe again, and return that there may be something in each queue that was told of.

        What was published meanwhile nobody heard.
        """
        pause = 0.05
        self._connection.disconnect()
        while not self._closed:
            try:
                self._subscribe()
            except StoreError:
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            now = time.time_ns() // 1_000_000
            return [(queue, now) for queue in self._told] or [("", now)]
        return []


def _read(hint: bytes) -> tuple[str, int]:
    """Return the queue of a hint, and the moment by this machine's clock."""
    queue, kind, moment = hint.decode().split(" ")
    if kind == "at":
        return queue, int(moment)
    return queue, time.time_ns() // 1_000_000 + int(moment)
