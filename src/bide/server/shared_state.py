"""The state that the processes of a server share, in files without a name that all inherit.

Figures are added up: each process posts what it has done since it began, and the process that
answers a scrape adds up all posts. A process never writes figures of another one, and reports its
own only after it has posted them, so no sum decreases by that, whichever process is scraped.
"""

import fcntl
import hashlib
import math
import os
import secrets
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from math import ceil
from typing import Any

import msgspec

from bide.engines.bounded_dict import BoundedDict
from bide.model.limits import MAX_FAILED_LOGINS, MAX_TALLIES
from bide.observing.tally import Stats, Tally
from bide.server.http.client_address import network_of
from bide.server.problem import Problem
from bide.targets.http.stats import PushStats


def make_file(name: str = "bide-shared") -> int:
    """Return the descriptor of a file without a name, to be inherited by each process.

    Args:
        name: the name in lists of open files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedFile:
    """A file that processes share, and its lock, which the system releases when a process dies.

    Args:
        descriptor: see `make_file`; by default a file of this process alone.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._file = make_file() if descriptor is None else descriptor

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, because the process ends."""
        return self._file == -1

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock, and yield the descriptor."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield self._file
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        self._file = -1  # a late call must not use another file with this number


WINDOW = 60.0
"""Seconds in which failed logins of an address are counted."""

PLACES = 16_384
"""The number of places for addresses. Of two addresses with the same place, the refused one is
counted, or else the last one."""

MAX_KNOWN = 10_000
"""The number of valid tokens that are remembered: they stay usable from a refused address."""

_ATTEMPTS = struct.Struct("=16sdQ")


class LoginThrottle(SharedFile):
    """Refuses addresses with too many failed logins, except with a token that was valid lately.

    The processes of a server count together, separately for each address (IPv6: each /64 network).
    The address "" is not limited: all clients of a proxy may share it. Times are those of the
    monotonic clock, which all processes of a machine share.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._known: BoundedDict[bytes, None] = BoundedDict(MAX_KNOWN)

    def check(self, address: str, token: str, now: float) -> None:
        """Refuse an address with too many failed logins.

        Args:
            address: the address of the client.
            token: the token of the request.
            now: the time.

        Raises:
            Problem: too many logins have failed; it says when to try again.
        """
        if not address or _digest(token) in self._known:
            return
        with self.locked() as file:
            known, began, count = self._read(file, key := _digest(network_of(address)))
        wait = began + WINDOW - now
        if known == key and count >= MAX_FAILED_LOGINS and wait > 0:
            raise Problem(
                "too-many-logins",
                f"{address} has sent {MAX_FAILED_LOGINS:,} wrong tokens within {WINDOW:g} s; try "
                f"again in {ceil(wait)} s",
                headers={"retry-after": str(ceil(wait))},
            )

    def failed(self, address: str, now: float) -> None:
        """Count a failed login."""
        if not address:
            return
        key = _digest(network_of(address))
        with self.locked() as file:
            known, began, count = self._read(file, key)
            if now < began + WINDOW and known == key:
                count += 1
            elif now < began + WINDOW and count >= MAX_FAILED_LOGINS:
                return
            else:
                began, count = now, 1
            os.pwrite(file, _ATTEMPTS.pack(key, began, count), _place_of(key))

    def passed(self, token: str) -> None:
        """Remember a valid token."""
        self._known[_digest(token)] = None

    def _read(self, file: int, key: bytes) -> tuple[Any, ...]:
        data = os.pread(file, _ATTEMPTS.size, _place_of(key))
        return _ATTEMPTS.unpack(data.ljust(_ATTEMPTS.size, b"\0"))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _place_of(key: bytes) -> int:
    return int.from_bytes(key[:8]) % PLACES * _ATTEMPTS.size


NEVER = float("-inf")
"""The time of a count before the first one."""

_KEY = 16


class Amount(msgspec.Struct):
    """How many messages, or bytes of messages, a namespace has."""

    value: float = 0.0
    """The upper bound: the last count, and what was put since."""
    added: float = 0.0
    """What was put since the server began."""
    after: float = NEVER
    """The time from which it may be counted again."""


class NamespaceUsage(msgspec.Struct):
    """What a namespace has used. Times are those of the monotonic clock of the machine."""

    messages: Amount = msgspec.field(default_factory=Amount)
    """How many messages are in its queues."""
    stored: Amount = msgspec.field(default_factory=Amount)
    """How many bytes these take."""
    allowance: float = math.inf
    """How many messages may be put at once; infinite before the first put."""
    at: float = 0.0
    """The time at which `allowance` was computed."""
    byte_allowance: float = math.inf
    """How many bytes requests and answers may take at once; below 0, they took too many."""
    byte_at: float = 0.0
    """The time at which `byte_allowance` was computed."""

    def packed(self, key: bytes) -> bytes:
        """Return its record."""
        messages, stored, *paces = msgspec.structs.astuple(self)
        amounts = *msgspec.structs.astuple(messages), *msgspec.structs.astuple(stored)
        return _RECORD.pack(key, *amounts, *paces)


_RECORD = struct.Struct(f"={_KEY}s10d")


class NamespaceFile(SharedFile):
    """One record per namespace in a shared file, each with its key and then its content.

    Args:
        size: of a record in bytes.
        descriptor: of the file.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._size = size
        self._places: dict[bytes, int] = {}

    def place_of(self, file: int, key: bytes, new: bytes) -> int:
        """Return the offset of a key's record; append a new record if there is none.

        The caller holds the lock.
        """
        if key not in self._places:
            end = os.fstat(file).st_size
            known = os.pread(file, end, 0)
            for place in range(0, end, self._size):
                self._places[known[place : place + _KEY]] = place
            if key not in self._places:
                os.pwrite(file, new, end)
                self._places[key] = end
        return self._places[key]


def _key_of(namespace: str | None) -> bytes:
    return hashlib.blake2b((namespace or "").encode(), digest_size=_KEY).digest()


class QuotaUsage(NamespaceFile):
    """What namespaces have used. A record is read and written under its lock."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(_RECORD.size, descriptor)

    @contextmanager
    def of(self, namespace: str | None) -> Iterator[NamespaceUsage]:
        """Lock the record of a namespace. Changes are stored, unless the block raises."""
        key = _key_of(namespace)
        with self.locked() as file:
            place = self.place_of(file, key, NamespaceUsage().packed(key))
            _, *values = _RECORD.unpack(os.pread(file, _RECORD.size, place))
            use = NamespaceUsage(Amount(*values[:3]), Amount(*values[3:6]), *values[6:])
            yield use
            os.pwrite(file, use.packed(key), place)


COLUMNS = 64
"""The number of processes of a server whose requests under way are counted."""

_PAIR = struct.Struct("=2d")


class Columns(SharedFile):
    """The column of each process in `UnderWay`, and the locks of namespaces.

    A process holds the lock of one byte for as long as it lives; the system releases it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self.mine = next((n for n in range(COLUMNS) if self._takes(n)), None)
        """The column of this process; `None`: there are too many processes."""

    def is_alive(self, column: int) -> bool:
        """Return whether the process of a column lives."""
        if column == self.mine:
            return True
        if self._takes(column):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, column)
            return False
        return True

    def hold(self, namespace: str | None) -> int:
        """Wait for the lock of a namespace, which other processes may hold; return its byte.

        The threads of one process do not exclude each other.
        """
        byte = COLUMNS + int.from_bytes(_key_of(namespace)[:4])
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, byte)
        return byte

    def release(self, byte: int) -> None:
        """Release the lock of a namespace."""
        if not self.is_closed:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    def _takes(self, column: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, column)
        except OSError:
            return False
        return True


class UnderWay(NamespaceFile):
    """The messages and bytes of puts that are under way, by namespace and process.

    A count of the store may miss those of other processes. What a dead process had under way does
    not count: its puts are in the store, or never will be.
    """

    def __init__(self, columns: Columns, descriptor: int | None = None) -> None:
        super().__init__(_KEY + COLUMNS * _PAIR.size, descriptor)
        self._columns = columns
        if columns.mine is not None:  # a dead process may have had this column
            with self.locked() as file:
                for place in range(0, os.fstat(file).st_size, self._size):
                    os.pwrite(file, bytes(_PAIR.size), self._offset(place, columns.mine))

    def add(self, namespace: str | None, messages: float, stored: float) -> None:
        """Count what a put adds; negative numbers when it has ended."""
        if self._columns.mine is None or self.is_closed:
            return
        with self.locked() as file:
            offset = self._offset(self._place(file, namespace), self._columns.mine)
            before = _PAIR.unpack(os.pread(file, _PAIR.size, offset))
            os.pwrite(file, _PAIR.pack(before[0] + messages, before[1] + stored), offset)

    def of(self, namespace: str | None) -> tuple[float, float]:
        """Return how many messages and bytes are under way, of all live processes."""
        with self.locked() as file:
            place = self._place(file, namespace)
            data = os.pread(file, COLUMNS * _PAIR.size, self._offset(place, 0))
        columns = enumerate(_PAIR.iter_unpack(data))
        pairs = [pair for n, pair in columns if any(pair) and self._columns.is_alive(n)]
        return sum(messages for messages, _ in pairs), sum(stored for _, stored in pairs)

    def _place(self, file: int, namespace: str | None) -> int:
        key = _key_of(namespace)
        return self.place_of(file, key, key.ljust(self._size, b"\0"))

    @staticmethod
    def _offset(place: int, column: int) -> int:
        return place + _KEY + column * _PAIR.size


_HEAD = struct.Struct("=QQ")
"""The offset of the posts, and their size in bytes."""


class ServerStats(Stats):
    """What one process has done since it began, in figures that can be added up."""

    CURRENT = "waiting", "processes"

    requests: Mapping[tuple[str, int], int] = {}
    """How many requests were answered, by operation and status."""
    seconds: Mapping[str, float] = {}
    """How long they took, by operation."""
    tallies: Mapping[str, Tally] = {}
    """What was claimed, by queue."""
    sent: PushStats = msgspec.field(default_factory=PushStats)
    """What was pushed."""
    waiting: int = 0
    """How many claims wait."""
    processes: int = 1
    """The number of live processes in these sums."""
    threads: Mapping[str, int] = {}
    """How often threads and tasks died and were restarted, by name."""


class _Posts(msgspec.Struct):
    """The contents of a board; the posts of live processes are decoded when they are added up."""

    ended: ServerStats = msgspec.field(default_factory=lambda: ServerStats(processes=0))
    """The sums of processes that have ended."""
    living: dict[str, msgspec.Raw] = {}
    """By process: its id and a random word, since ids are reused."""


_encode = msgspec.msgpack.Encoder().encode
_posts = msgspec.msgpack.Decoder(_Posts).decode
_decode = msgspec.msgpack.Decoder(ServerStats).decode

_FINEST = 1 << 20
"""Sums of seconds are multiples of 1/this: they add up exactly in any order, so a sum does not
fall by a rounding error when a process ends."""


class SharedStats(SharedFile):
    """The file to which the processes of a server post their figures.

    The last post of a killed process is kept: its figures of up to a second are lost.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"

    def post(self, stats: ServerStats) -> None:
        """Post what this process has done so far."""
        if not self.is_closed:
            with self._posts() as posts:
                posts.living[self._name] = msgspec.Raw(_encode(stats))

    def together(self, stats: ServerStats) -> ServerStats:
        """Return the sums of all processes: this one until now, others until a second ago."""
        with self._posts() as posts:
            posts.living[self._name] = msgspec.Raw(_encode(stats))
        return reduce(ServerStats.plus, map(_read, posts.living.values()), posts.ended)

    @contextmanager
    def _posts(self) -> Iterator[_Posts]:
        """Lock the posts. Changes are stored."""
        with self.locked() as file:
            head = os.pread(file, _HEAD.size, 0)
            at, size = _HEAD.unpack(head) if head else (_HEAD.size, 0)
            posts = _posts(os.pread(file, size, at)) if size else _Posts()
            for name in [name for name in posts.living if not _lives(name)]:
                ended = posts.ended.plus(_read(posts.living.pop(name)).ceased())
                newest = dict(list(ended.tallies.items())[-MAX_TALLIES:])
                posts.ended = msgspec.structs.replace(ended, tallies=newest)
            yield posts
            data = _encode(posts)
            # Not over the current posts: a process that is killed while writing changes nothing.
            place = _HEAD.size if at - _HEAD.size >= len(data) else at + size
            os.pwrite(file, data, place)
            os.pwrite(file, _HEAD.pack(place, len(data)), 0)


def _read(post: bytes | msgspec.Raw) -> ServerStats:
    """Decode figures, rounded so that they add up exactly."""
    stats = _decode(post)
    stats.seconds = {operation: _exact(took) for operation, took in stats.seconds.items()}
    for tally in (*stats.tallies.values(), *stats.sent.tallies.values()):
        tally.lateness.sum = _exact(tally.lateness.sum)
        tally.duration.sum = _exact(tally.duration.sum)
    return stats


def _exact(seconds: float) -> float:
    return math.floor(seconds * _FINEST) / _FINEST


def _lives(name: str) -> bool:
    try:
        os.kill(int(name.partition("-")[0]), 0)
    except OSError:
        return False
    return True


def make_files() -> list[int]:
    """Return the descriptors of files for a `SharedState`, to be inherited by each process."""
    return [make_file(f"bide-{name}") for name in _NAMES]


_NAMES = "usage", "stats", "logins", "columns", "under-way", "sessions"


class SharedState:
    """The state that the processes of a server share.

    Args:
        descriptors: see `make_files`; by default the state belongs to this process alone.
    """

    def __init__(self, descriptors: Sequence[int | None] = (None,) * len(_NAMES)) -> None:
        usage, stats, logins, columns, under_way, sessions = descriptors
        self.usage = QuotaUsage(usage)
        """How much namespaces have used of their quotas."""
        self.stats = SharedStats(stats)
        """What each process has done."""
        self.logins = LoginThrottle(logins)
        """The addresses that have sent wrong tokens."""
        self.columns = Columns(columns)
        self.under_way = UnderWay(self.columns, under_way)
        """The puts that are under way."""
        self.sessions = SharedFile(sessions)
        """The sessions of the dashboard; see `bide.server.session_table`."""

    def close(self) -> None:
        """Close the files."""
        shared = self.usage, self.stats, self.logins, self.under_way, self.columns, self.sessions
        for file in shared:
            file.close()
