"""The state that the processes of a server share, in files without a name that all inherit.

Figures are added up: each process posts what it has done since it began, and the process that
answers a scrape adds up all posts. A process never writes figures of another one, and reports its
own only after it has posted them, so no sum decreases by that, whichever process is scraped.
"""

import errno
import fcntl
import hashlib
import math
import os
import secrets
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from math import ceil
from typing import Literal, NamedTuple, Self

import msgspec

from bide.engines import losses
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


RETRY_LOCK = 0.001
"""Seconds until a lock is asked for once more that the system took for part of a deadlock."""


def take_lock(file: int, length: int = 0, start: int = 0) -> None:
    """Lock a file, or a part of it, and wait until others have released it.

    The system counts locks by process: where one thread waits for a namespace, and another one of
    the same process holds a file for a moment, it may see a deadlock that is none, and refuses to
    wait. Who holds a file waits for no namespace, so the lock is free soon.
    """
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX, length, start)
            return
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
        time.sleep(RETRY_LOCK)


class SharedFile:
    """A file that processes share, and its lock, which the system releases when a process dies.

    The system's locks do not keep the threads of one process apart, so there is one for these, too.

    Args:
        descriptor: see `make_file`; by default a file of this process alone.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._file = make_file() if descriptor is None else descriptor
        self._thread_lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, because the process ends."""
        return self._file == -1

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock, and yield the descriptor."""
        with self._thread_lock:
            take_lock(self._file)
            try:
                yield self._file
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        self._file = -1  # a late call must not use another file with this number


LOGIN_WINDOW = 60.0
"""Seconds in which failed logins of an address are counted."""

LOGIN_PLACES = 16_384
"""The number of places for addresses. Of two addresses with the same place, the refused one is
counted, or else the last one."""

MAX_KNOWN = 10_000
"""The number of valid tokens that are remembered: they stay usable from a refused address."""

_ATTEMPTS = struct.Struct("=16sdQ")
"""The fields of `Attempts` in the file."""


class Attempts(NamedTuple):
    """The failed logins of an address."""

    key: bytes
    """The digest of the address or network."""
    began: float
    """The time of the first one, in seconds of the monotonic clock."""
    failures: int
    """How many there were since."""


class LoginThrottle(SharedFile):
    """Refuses addresses with too many failed logins, except with a token that was valid lately.

    The processes of a server count together, separately for each address (IPv6: each /64 network).
    The address "" is not limited: all clients of a proxy may share it. Times are those of the
    monotonic clock, which all processes of a machine share.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._valid_tokens: BoundedDict[bytes, None] = BoundedDict(MAX_KNOWN)
        """Digests of tokens that were valid lately."""

    def check(self, address: str, token: str, now: float) -> None:
        """Refuse an address with too many failed logins.

        Args:
            address: the address of the client.
            token: the token of the request.
            now: the time, in seconds of the monotonic clock.

        Raises:
            Problem: too many logins have failed; it says when to try again.
        """
        if not address or _digest(token) in self._valid_tokens:
            return
        key = _digest(network_of(address))
        with self.locked() as file:
            attempts = self._read(file, key)
        wait = attempts.began + LOGIN_WINDOW - now
        if attempts.key == key and attempts.failures >= MAX_FAILED_LOGINS and wait > 0:
            raise Problem(
                "too-many-logins",
                f"{address} has sent {MAX_FAILED_LOGINS:,} wrong tokens within {LOGIN_WINDOW:g} s; "
                f"try again in {ceil(wait)} s",
                headers={"retry-after": str(ceil(wait))},
            )

    def failed(self, address: str, now: float) -> None:
        """Count a failed login.

        Two addresses may have the same place in the file. The later one takes it, unless the other
        one is refused now.
        """
        if not address:
            return
        key = _digest(network_of(address))
        with self.locked() as file:
            stored = self._read(file, key)
            is_current = now < stored.began + LOGIN_WINDOW
            is_own = stored.key == key
            if is_current and not is_own and stored.failures >= MAX_FAILED_LOGINS:
                return
            failures = stored.failures + 1 if is_current and is_own else 1
            began = stored.began if is_current and is_own else now
            os.pwrite(file, _ATTEMPTS.pack(*Attempts(key, began, failures)), _place_of(key))

    def passed(self, token: str) -> None:
        """Remember a valid token."""
        self._valid_tokens[_digest(token)] = None

    def _read(self, file: int, key: bytes) -> Attempts:
        """Return what is at the place of a key: perhaps attempts of another one, or none."""
        data = os.pread(file, _ATTEMPTS.size, _place_of(key))
        return Attempts(*_ATTEMPTS.unpack(data.ljust(_ATTEMPTS.size, b"\0")))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _place_of(key: bytes) -> int:
    """Return the offset in the file at which attempts of a key are."""
    return int.from_bytes(key[:8]) % LOGIN_PLACES * _ATTEMPTS.size


NEVER = float("-inf")
"""The time of a count before the first one."""

_KEY_SIZE = 16


Measure = Literal["messages", "stored"]
"""What is counted: messages, or their bytes, which takes longer."""


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

    def amount(self, measure: Measure) -> Amount:
        """Return the amount of a measure."""
        return self.messages if measure == "messages" else self.stored

    def packed(self, key: bytes) -> bytes:
        """Return its record in the file: the key of the namespace, and all fields as numbers."""
        messages, stored, *allowances = msgspec.structs.astuple(self)
        amounts = *msgspec.structs.astuple(messages), *msgspec.structs.astuple(stored)
        return _RECORD.pack(key, *amounts, *allowances)

    @classmethod
    def unpacked(cls, record: bytes) -> "NamespaceUsage":
        """Return the usage of a record; see `packed`."""
        _key, *numbers = _RECORD.unpack(record)
        return cls(Amount(*numbers[:3]), Amount(*numbers[3:6]), *numbers[6:])


_RECORD = struct.Struct(f"={_KEY_SIZE}s10d")


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
        """The offsets of the known records by their keys."""

    def place_of(self, file: int, key: bytes, new: bytes) -> int:
        """Return the offset of a key's record; append a new record if there is none.

        The caller holds the lock.
        """
        if key not in self._places:
            end = os.fstat(file).st_size
            records = os.pread(file, end, 0)  # other processes may have appended some
            for place in range(0, end, self._size):
                self._places[records[place : place + _KEY_SIZE]] = place
            if key not in self._places:
                os.pwrite(file, new, end)
                self._places[key] = end
        return self._places[key]


def _key_of(namespace: str | None) -> bytes:
    return hashlib.blake2b((namespace or "").encode(), digest_size=_KEY_SIZE).digest()


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
            use = NamespaceUsage.unpacked(os.pread(file, _RECORD.size, place))
            yield use
            os.pwrite(file, use.packed(key), place)


MOST_COLUMNS = 64
"""The number of processes of a server whose requests under way are counted."""

_PAIR = struct.Struct("=2d")
"""Messages and bytes."""


class Columns(SharedFile):
    """The column of each process in `UnderWay`, and the locks of namespaces.

    A process holds the lock of one byte for as long as it lives; the system releases it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self.own_column = next((n for n in range(MOST_COLUMNS) if self._locks(n)), None)
        """The column of this process; `None`: there are too many processes."""

    def is_alive(self, column: int) -> bool:
        """Return whether the process of a column lives."""
        if column == self.own_column:
            return True
        if self._locks(column):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, column)
            return False
        return True

    def hold(self, namespace: str | None) -> int:
        """Wait for the lock of a namespace, which other processes may hold; return its byte.

        The threads of one process do not exclude each other.
        """
        # The bytes before are the locks of columns.
        byte = MOST_COLUMNS + int.from_bytes(_key_of(namespace)[:4])
        take_lock(self._file, 1, byte)
        return byte

    def release(self, byte: int) -> None:
        """Release the lock of a namespace."""
        if not self.is_closed:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    def _locks(self, column: int) -> bool:
        """Try to lock a column; tell whether this process has it now."""
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
        super().__init__(_KEY_SIZE + MOST_COLUMNS * _PAIR.size, descriptor)
        self._columns = columns
        if columns.own_column is not None:  # a dead process may have had this column
            with self.locked() as file:
                for place in range(0, os.fstat(file).st_size, self._size):
                    os.pwrite(file, bytes(_PAIR.size), self._offset(place, columns.own_column))

    def add(self, namespace: str | None, messages: float, stored: float) -> None:
        """Count what a put adds; negative numbers when it has ended."""
        if self._columns.own_column is None or self.is_closed:
            return
        with self.locked() as file:
            offset = self._offset(self._place(file, namespace), self._columns.own_column)
            messages_before, stored_before = _PAIR.unpack(os.pread(file, _PAIR.size, offset))
            pair = messages_before + messages, stored_before + stored
            os.pwrite(file, _PAIR.pack(*pair), offset)

    def of(self, namespace: str | None) -> tuple[float, float]:
        """Return how many messages and bytes are under way, of all live processes."""
        with self.locked() as file:
            place = self._place(file, namespace)
            data = os.pread(file, MOST_COLUMNS * _PAIR.size, self._offset(place, 0))
        columns = enumerate(_PAIR.iter_unpack(data))
        pairs = [pair for n, pair in columns if any(pair) and self._columns.is_alive(n)]
        return sum(messages for messages, _ in pairs), sum(stored for _, stored in pairs)

    def _place(self, file: int, namespace: str | None) -> int:
        """Return the offset of the record of a namespace."""
        key = _key_of(namespace)
        return self.place_of(file, key, key.ljust(self._size, b"\0"))

    @staticmethod
    def _offset(place: int, column: int) -> int:
        """Return the offset of the pair of a process in the record at `place`."""
        return place + _KEY_SIZE + column * _PAIR.size


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
    lost: Mapping[str, int] = {}
    """How many changes are lost, at least, by queue."""

    def plus(self, other: Self) -> Self:
        """Return the sum of both; of lost changes, what both have seen together."""
        lost = losses.together([self.lost, other.lost])
        return msgspec.structs.replace(super().plus(other), lost=lost)


class _Posts(msgspec.Struct):
    """The contents of a board; the posts of live processes are decoded when they are added up."""

    ended: ServerStats = msgspec.field(default_factory=lambda: ServerStats(processes=0))
    """The sums of processes that have ended."""
    living: dict[str, msgspec.Raw] = {}
    """By process: its id and a random word, since ids are reused."""


_encode = msgspec.msgpack.Encoder().encode
_decode_posts = msgspec.msgpack.Decoder(_Posts).decode
_decode_stats = msgspec.msgpack.Decoder(ServerStats).decode

_FRACTIONS = 1 << 20
"""Sums of seconds are multiples of 1/this: they add up exactly in any order, so a sum does not
fall by a rounding error when a process ends."""


class SharedStats(SharedFile):
    """The file to which the processes of a server post their figures.

    The last post of a killed process is kept: its figures of up to a second are lost.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        """The name of this process among the posts."""
        with self._posts() as posts:
            self.lost_before = _sum(posts).lost
            """How many changes other processes had seen to be lost when this one began."""

    def post(self, stats: ServerStats) -> None:
        """Post what this process has done so far."""
        if not self.is_closed:
            with self._posts() as posts:
                posts.living[self._name] = msgspec.Raw(_encode(stats))

    def together(self, stats: ServerStats) -> ServerStats:
        """Return the sums of all processes: this one until now, others until a second ago."""
        with self._posts() as posts:
            posts.living[self._name] = msgspec.Raw(_encode(stats))
        return _sum(posts)

    @contextmanager
    def _posts(self) -> Iterator[_Posts]:
        """Lock the posts. Changes are stored."""
        with self.locked() as file:
            head = os.pread(file, _HEAD.size, 0)
            offset, size = _HEAD.unpack(head) if head else (_HEAD.size, 0)
            posts = _decode_posts(os.pread(file, size, offset)) if size else _Posts()
            for name in [name for name in posts.living if not _is_alive(name)]:
                ended = posts.ended.plus(_read(posts.living.pop(name)).ceased())
                newest = dict(list(ended.tallies.items())[-MAX_TALLIES:])
                posts.ended = msgspec.structs.replace(ended, tallies=newest)
            yield posts
            data = _encode(posts)
            # Not over the current posts: a process that is killed while writing changes nothing.
            has_room_before = offset - _HEAD.size >= len(data)
            new_offset = _HEAD.size if has_room_before else offset + size
            os.pwrite(file, data, new_offset)
            os.pwrite(file, _HEAD.pack(new_offset, len(data)), 0)


def _sum(posts: _Posts) -> ServerStats:
    """Return the figures of all processes."""
    return reduce(ServerStats.plus, map(_read, posts.living.values()), posts.ended)


def _read(post: bytes | msgspec.Raw) -> ServerStats:
    """Decode figures, rounded so that they add up exactly."""
    stats = _decode_stats(post)
    stats.seconds = {operation: _exact(took) for operation, took in stats.seconds.items()}
    for tally in (*stats.tallies.values(), *stats.sent.tallies.values()):
        tally.lateness.sum = _exact(tally.lateness.sum)
        tally.duration.sum = _exact(tally.duration.sum)
    return stats


def _exact(seconds: float) -> float:
    return math.floor(seconds * _FRACTIONS) / _FRACTIONS


def _is_alive(name: str) -> bool:
    """Tell whether the process with a name among the posts lives."""
    process_id, _, _word = name.partition("-")
    try:
        os.kill(int(process_id), 0)  # sends no signal
    except OSError:
        return False
    return True


def make_files() -> list[int]:
    """Return the descriptors of files for a `SharedState`, to be inherited by each process."""
    return [make_file(f"bide-{name}") for name in _NAMES]


def stats_in(descriptors: Sequence[int]) -> SharedStats:
    """Return what the processes that inherit these files have done; see `make_files`."""
    return SharedStats(os.dup(descriptors[_NAMES.index("stats")]))


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
