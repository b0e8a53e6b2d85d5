"""How a process hears of what others put: a channel of its own, and a connection that listens.

The script that changes a queue picks one lane that waits for it and publishes to that lane's
channel. The server tells it whether anybody heard; a lane that is gone is passed over at once.
"""

import logging
import threading
import time
from typing import Any

from redis import exceptions as raised

from bide.engines.redis.keys import CHANNEL, script_keys
from bide.engines.redis.link import Link, Lost, pack, place
from bide.engines.redis.scripts import load_all
from bide.engines.redis.settings import Settings
from bide.engines.redis.verbs.job import Call
from bide.model.errors import StoreError, StoreUnavailable

__all__ = ["HEARTBEAT", "LOOK", "ChannelBell", "Where", "ask_again", "read_hint", "warn_deaf"]

Where = tuple[int, int]
"""Which shard a hint is about, and of how many."""

LOOK = 1.0
"""How often, in seconds, the listener sees whether it was closed while the server was away."""

HEARTBEAT = 10.0
"""After so many seconds of silence the listener asks whether the server is still there."""

_log = logging.getLogger("bide.redis")
_deaf: set[str] = set()


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
        self._stale = self._doubtful = False
        self._watched: set[str] = set()
        self._told: dict[str, set[Where]] = {}
        self._lock = threading.Lock()
        self._hearing = threading.Lock()
        self._closed = False
        self._side: Link | None = None
        self._connection: Any = None
        self._subscribe()
        if settings.sentinels is not None:
            settings.sentinels.watch.add(self._move)

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes, and return it; an empty list once the bell is closed."""
        with self._hearing:
            hints = self._hear()
            if self._closed:
                self._connection.disconnect()
            return hints

    def _hear(self) -> list[tuple[str, int]]:
        heard = time.monotonic()
        asked = False
        while not self._closed:
            if self._stale:
                return self._anew()
            if self._doubtful:
                self._doubtful, heard = False, time.monotonic() - HEARTBEAT
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
                queue, where, wake = read_hint(answer[2])
                self._told.setdefault(queue, set()).add(where)
                return [(queue, wake)]
        return []

    def decline(self, queue: str, wake: int) -> None:
        """Pass on a hint, since nobody waits for this queue here any more."""
        script = load_all()["decline"]
        for where in self._told.pop(queue, {(0, 1)}):
            call = Call("decline", queue, (), *where)
            keys = script_keys("decline", queue, self._lane, call.shard)
            self._aside("EVALSHA", script.sha, len(keys), *keys, "", "", self._lane, call.label)

    def watch(self, queue: str) -> None:
        """A claim may wait for this queue: hints for it count."""
        self._watched.add(queue)

    def renew(self, where: str) -> None:
        """Subscribe at another server soon, or see whether this one still answers.

        Args:
            where: where commands go to now, after their connection was lost.
        """
        if where == place(self._connection):
            self._doubtful = True
        else:
            self._stale = True

    def close(self) -> None:
        """Stop listening: `listen` returns."""
        self._closed = True
        if self._settings.sentinels is not None:
            self._settings.sentinels.watch.remove(self._move)
        self._aside("PUBLISH", CHANNEL + self._lane, "")
        self._leave_side()
        if self._hearing.acquire(blocking=False):  # else whoever listens hangs up
            self._connection.disconnect()
            self._hearing.release()

    def _leave_side(self) -> None:
        with self._lock:
            if self._side is not None:
                self._side.close()
                self._side = None

    def _aside(self, *command: Any) -> None:
        """Send a command beside the listening; if it does not arrive, time makes up for it."""
        with self._lock:
            try:
                self._side = self._side or Link(self._settings.hurried(LOOK))
                ask_again(self._side, *command)
            except (StoreError, Lost):
                self._side = None

    def _move(self, masters: frozenset[str]) -> None:
        """Subscribe at the master soon, if the sentinels name another one; in their thread."""
        if place(self._connection) not in masters:
            self._stale = True

    def _subscribe(self) -> None:
        self._stale = False
        connection = self._settings.connection()
        try:
            connection.connect()
            connection.send_packed_command([pack("SUBSCRIBE", CHANNEL + self._lane)])
            connection.read_response(disable_decoding=True)
        except (raised.RedisError, OSError) as error:
            connection.disconnect()
            warn_deaf(error, self._settings.shown)
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
        """Subscribe again, and return that there may be something in each queue that is watched.

        What was published meanwhile nobody heard.
        """
        pause = 0.05
        self._connection.disconnect()
        self._leave_side()
        while not self._closed:
            try:
                self._subscribe()
            except StoreError:
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            now = time.time_ns() // 1_000_000
            return [(queue, now) for queue in tuple(self._watched)] or [("", now)]
        return []


def ask_again(link: Link, *command: Any) -> None:
    """Send a command that may call a script, once more if the server has forgotten the script.

    Raises:
        Lost: the connection broke.
    """
    if isinstance(link.ask(*command), raised.NoScriptError):
        link.reload()
        link.ask(*command)


def warn_deaf(error: Exception, shown: str) -> None:
    """Say once that a user may not be told of anything, if that is why it cannot subscribe."""
    if isinstance(error, raised.NoPermissionError) and shown not in _deaf:
        _deaf.add(shown)
        _log.warning(
            "%s: this user may not subscribe to %s*, so that claims which wait look once a second "
            "instead of being told; its ACL needs +subscribe and &bide:* (%s)",
            shown, CHANNEL, error,
        )  # fmt: skip


def read_hint(hint: bytes) -> tuple[str, Where, int]:
    """Return the queue of a hint, its shard, and the moment by this machine's clock."""
    label, kind, moment = hint.decode().split(" ")
    queue, _, place = label.partition("#")
    shard, _, shards = place.partition("/")
    where = (int(shard), int(shards)) if place else (0, 1)
    wake = int(moment) if kind == "at" else time.time_ns() // 1_000_000 + int(moment)
    return queue, where, wake
