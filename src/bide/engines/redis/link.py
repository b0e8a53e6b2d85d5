"""One connection to a server: opening it, pipelines, and what happens when it breaks."""

import logging
import os
import select
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import hiredis
from redis import exceptions as raised

from bide.engines.redis.faults import no_connection, origin
from bide.engines.redis.keys import CHANNEL, VERSION
from bide.engines.redis.records import Arg
from bide.engines.redis.scripts import load_all
from bide.engines.redis.settings import Settings
from bide.model.errors import SchemaTooNew, StoreError, StoreUnavailable

__all__ = ["LAYOUT", "Link", "Lost", "is_away", "pack", "place", "refuse_newer", "seek"]

LAYOUT = 1
"""The version of the layout of keys and records."""

OLDEST = (7, 0)

PART = 125
"""How many arguments of a long command are sent at a time."""

SOON = 100e-6
"""For how many seconds the answer to one command is looked for at most before the thread sleeps.

To sleep and be woken takes about as long as a server on the same machine needs for one command.
"""

_BROKEN = (raised.ConnectionError, raised.TimeoutError, raised.InvalidResponse, OSError)
"""What ends a connection; the third: what came was not said by Redis."""

_log = logging.getLogger("bide.redis")
_warned: set[str] = set()


def pack(*command: Arg) -> bytes:
    """Return a command as it goes to the server."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


def _in_parts(command: Sequence[Arg]) -> Iterator[bytes | memoryview]:
    """Yield a command as it goes to the server: it reads a part while the next one is made."""
    yield b"*%d\r\n" % len(command)
    for first in range(0, len(command), PART):
        packed = pack(*command[first : first + PART])
        yield memoryview(packed)[packed.index(b"\n") + 1 :]


def seek(settings: Settings, deadline: float | None, lost: "Link | None" = None) -> "Link":
    """Return a connection to the server, sought until a moment of the monotonic clock.

    A server that is loading its data is waited for in any case, for as long as a lost connection
    would be sought.

    Args:
        settings: where the server is.
        deadline: until when to try; `None`: once.
        lost: the connection whose place it takes, if there was one.

    Raises:
        StoreError: it cannot be reached, or is not what bide needs.
    """
    pause = 0.01
    loaded = time.monotonic() + settings.reconnect
    while True:
        try:
            return Link(settings, lost)
        except StoreUnavailable as error:
            if not is_away(error):
                raise
            if settings.sentinels is not None:
                settings.sentinels.doubt()
            loading = isinstance(error.__cause__, raised.BusyLoadingError)
            until = loaded if loading else deadline
            if until is None or time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def is_away(error: StoreError) -> bool:
    """Tell whether nobody answered, so that it may help to try again soon."""
    cause = error.__cause__
    kinds = (raised.ConnectionError, raised.TimeoutError, OSError)
    refused = (raised.AuthenticationError, raised.ResponseError)
    if cause is None or isinstance(origin(cause), ssl.SSLCertVerificationError):
        return False
    return isinstance(cause, kinds) and not isinstance(cause, refused)


def _poll(connection: Any) -> Callable[[int], list[Any]] | None:
    """Return what tells whether something can be read; `None` where the system has no such."""
    if not hasattr(select, "poll") or not hasattr(os, "sched_yield"):
        return None
    poller = select.poll()
    poller.register(connection._sock, select.POLLIN)
    return poller.poll


def place(connection: Any) -> str:
    """Return where a connection leads to, fit to be shown."""
    if hasattr(connection, "port"):
        return f"{connection.host}:{connection.port}"
    return str(connection.path)


def refuse_newer(version: bytes | None, shown: str) -> None:
    """See that a store's version, if it has one, is known here.

    Raises:
        SchemaTooNew: it is newer.
    """
    if version is not None and (not version.isdigit() or int(version) > LAYOUT):
        raise SchemaTooNew(
            f"{shown}: a newer bide stores its messages there (layout "
            f"{version.decode(errors='replace')}, this one knows {LAYOUT}): upgrade bide here"
        )


class Lost(Exception):
    """The connection broke; `answers` are what had come until then."""

    def __init__(self, cause: Exception, answers: list[Any]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.answers = answers


class Link:
    """A connection to a server whose scripts are loaded, and which was found fit for bide.

    Args:
        settings: where the server is.
        lost: the connection whose place it takes. The server is told to end it: what the network
            still holds back of it would be done after it was sent again here.

    Raises:
        StoreError: it cannot be reached, or is not what bide needs.
    """

    def __init__(self, settings: Settings, lost: "Link | None" = None) -> None:
        self._settings = settings
        self._run = ""
        self._number: int | None = None
        self._connection = settings.connection()
        self.place = place(self._connection)
        self.open = True
        self._unseen = self._rest = 0
        try:
            self._connection.connect()
            self._poll = _poll(self._connection)
            self._examine()
            if lost is not None:
                self._end(lost)
        except (raised.RedisError, OSError) as error:
            self.close()
            raise no_connection(error, settings.shown, self.place) from error
        except Lost as lost:
            self.close()
            raise no_connection(lost.cause, settings.shown, self.place) from lost.cause
        except BaseException:
            self.close()
            raise

    def ask(self, *command: Any) -> Any:
        """Send one command and return what comes back, an error as a value."""
        return self.exchange([pack(*command)])[0]

    def exchange(self, packed: Sequence[bytes]) -> list[Any]:
        """Send commands in one go and return what comes back, errors as values.

        Raises:
            Lost: the connection broke, or the server was silent for too long.
        """
        self.post(packed)
        return self.receive(len(packed))

    def exchange_one(self, command: Sequence[Arg], *, soon: bool) -> Any:
        """Send one command and return what comes back, an error as a value.

        Args:
            command: its name and arguments.
            soon: whether it takes so little that the answer is looked for before the thread sleeps.

        Raises:
            Lost: as `exchange`.
        """
        self._post((pack(*command),) if len(command) <= 2 * PART else _in_parts(command))
        if soon and self._poll is not None:
            if self._rest:
                self._rest -= 1
            else:
                self._look(self._poll)
        return self.receive(1)[0]

    def _look(self, poll: Callable[[int], list[Any]]) -> None:
        """Look for an answer until it is there; the more seldom the longer none came so soon."""
        end = time.perf_counter() + SOON
        os.sched_yield()  # to the server, should it share this processor
        while not poll(0):
            if time.perf_counter() > end:
                self._unseen = min(self._unseen + 1, 8)
                self._rest = 2**self._unseen - 2
                return
            os.sched_yield()
        self._unseen = 0

    def post(self, packed: Sequence[bytes]) -> None:
        """Send commands; what comes back is to be received before anything else is sent.

        Raises:
            Lost: the connection broke.
        """
        self._post((b"".join(packed),))

    def _post(self, parts: Iterable[bytes | memoryview]) -> None:
        try:
            self._connection.send_packed_command(parts, check_health=False)
        except _BROKEN as error:
            self.close()
            raise Lost(error, []) from error
        except BaseException:
            self.close()
            raise

    def receive(self, count: int) -> list[Any]:
        """Return what comes back of so many commands, errors as values.

        Raises:
            Lost: the connection broke, or the server was silent for too long.
        """
        answers: list[Any] = []
        read = self._connection.read_response
        try:
            for _ in range(count):
                try:
                    answers.append(read(disable_decoding=True, disconnect_on_error=False))
                except raised.BusyLoadingError:
                    raise
                except raised.ResponseError as error:
                    answers.append(error)
        except _BROKEN as error:
            self.close()
            raise Lost(error, answers) from error
        except BaseException:  # what is still on its way must not be taken for the next answer
            self.close()
            raise
        return answers

    def reload(self) -> None:
        """Load the scripts again, after somebody has had the server forget them."""
        self.exchange([pack("SCRIPT", "LOAD", script.text) for script in load_all().values()])

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._connection.disconnect()

    def _examine(self) -> None:
        """See that the server can be what bide needs, and prepare it."""
        alone = self._settings.cluster is None
        packed = [pack("INFO", "default"), pack("GET", VERSION) if alone else pack("PING", "0")]
        # Whether waiting lanes may be told is to show here, not in the middle of a change.
        packed += [pack("PUBLISH", CHANNEL, ""), pack("CLIENT", "ID")]
        packed += [pack("SCRIPT", "LOAD", script.text) for script in load_all().values()]
        try:
            answers = self.exchange(packed)
        except Lost as lost:
            raise lost.cause from None
        info, version, told, number, *shas = answers
        if isinstance(info, Exception):
            raise info
        facts = dict(
            line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line
        )
        if facts.get("redis_mode") == "sentinel":
            raise StoreUnavailable(
                f"{self._settings.shown}: this is a sentinel: write redis+sentinel:// (or "
                "rediss+sentinel://), and behind the address the name of the master, as in "
                "redis+sentinel://host:26379/mymaster"
            )
        found = facts.get("redis_version", "0")
        if tuple(int(part) for part in found.split(".")[:2] if part.isdigit()) < OLDEST:
            raise StoreUnavailable(
                f"{self._settings.shown}: this is Redis {found}; bide needs 7.0 or newer, or Valkey"
            )
        role = facts.get("role", "master")
        if self._settings.sentinels is not None and role != "master":
            raise raised.ConnectionError(
                f"{self.place} is named as the master by a sentinel, and says that it is a {role}"
            )
        if alone and facts.get("cluster_enabled") == "1":
            raise StoreUnavailable(
                f"{self._settings.shown}: this server is a node of a cluster: write "
                "redis+cluster:// (or rediss+cluster://) and some nodes, host:port,host:port"
            )
        if not alone and facts.get("cluster_enabled") != "1":
            raise StoreUnavailable(
                f"{self._settings.shown}: this server is part of no cluster: write redis:// (or "
                "rediss://) and this server alone"
            )
        if isinstance(version, Exception):
            raise version
        if alone:
            if version is None:
                self.ask("SET", VERSION, LAYOUT, "NX")
            refuse_newer(version, self._settings.shown)
        for answer in (told, *shas):
            if isinstance(answer, Exception):
                raise answer
        self._run = facts.get("run_id", "")
        self._number = number if isinstance(number, int) else None
        self._warn(facts)

    def _end(self, lost: "Link") -> None:
        """Have the server end a connection that was to this very run of it."""
        if not lost._run or lost._number is None or lost._run != self._run:
            return
        answer = self.ask("CLIENT", "KILL", "ID", lost._number)
        if isinstance(answer, Exception):
            _log.debug("%s: the lost connection was not ended (%s)", self._settings.shown, answer)

    def _warn(self, facts: dict[str, str]) -> None:
        """Say once what makes this server a bad place for messages."""
        shown = self._settings.shown
        if shown in _warned:
            return
        _warned.add(shown)
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            _log.warning(
                "%s: maxmemory-policy is %s, so that the server deletes messages when its memory "
                "is full; set it to noeviction", shown, policy,
            )  # fmt: skip
        if facts.get("aof_enabled") == "0":
            save = self.ask("CONFIG", "GET", "save")
            if isinstance(save, list) and save[1:] == [b""]:
                _log.warning(
                    "%s: the server writes nothing to disk: a restart loses every message; set "
                    "appendonly yes", shown,
                )  # fmt: skip
