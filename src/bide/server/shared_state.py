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
        left = began + WINDOW - now
        if known == key and count >= MAX_FAILED_LOGINS and left > 0:
            raise Problem(
                "too-many-logins",
                f"{address} has sent {MAX_FAILED_LOGINS:,} wrong tokens within {WINDOW:g} s; try "
                f"again in {ceil(left)} s",
                headers={"retry-after": str(ceil(left))},
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


class QuotaUsage(SharedFile):
    """One record per namespace in a shared file. A record is read and written under its lock."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._places: dict[bytes, int] = {}

    @contextmanager
    def of(self, namespace: str | None) -> Iterator[NamespaceUsage]:
        """Lock the record of a namespace. Changes are stored, unless the block raises."""
        key = hashlib.blake2b((namespace or "").encode(), digest_size=_KEY).digest()
        with self.locked() as file:
            place = self._place(file, key)
            _, *values = _RECORD.unpack(os.pread(file, _RECORD.size, place))
            use = NamespaceUsage(Amount(*values[:3]), Amount(*values[3:6]), *values[6:])
            yield use
            os.pwrite(file, use.packed(key), place)

    def _place(self, file: int, key: bytes) -> int:
        """Return the offset of a key's record; append the record if there is none."""
        if key not in self._places:
            end = os.fstat(file).st_size
            known = os.pread(file, end, 0)
            for place in range(0, end, _RECORD.size):
                self._places[known[place : place + _KEY]] = place
            if key not in self._places:
                os.pwrite(file, NamespaceUsage().packed(key), end)
                self._places[key] = end
        return self._places[key]


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


class _Posts(msgspec.Struct):
    """The contents of a board; the posts of live processes are decoded when they are added up."""

    gone: ServerStats = msgspec.field(default_factory=lambda: ServerStats(processes=0))
    """The sums of processes that have ended."""
    there: dict[str, msgspec.Raw] = {}
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

    def post(self, mine: ServerStats) -> None:
        """Post what this process has done so far."""
        if not self.is_closed:
            with self._posts() as posts:
                posts.there[self._name] = msgspec.Raw(_encode(mine))

    def together(self, mine: ServerStats) -> ServerStats:
        """Return the sums of all processes: this one until now, others until a second ago."""
        with self._posts() as posts:
            posts.there[self._name] = msgspec.Raw(_encode(mine))
        return reduce(ServerStats.plus, map(_read, posts.there.values()), posts.gone)

    @contextmanager
    def _posts(self) -> Iterator[_Posts]:
        """Lock the posts. Changes are stored."""
        with self.locked() as file:
            head = os.pread(file, _HEAD.size, 0)
            at, size = _HEAD.unpack(head) if head else (_HEAD.size, 0)
            posts = _posts(os.pread(file, size, at)) if size else _Posts()
            for name in [name for name in posts.there if not _lives(name)]:
                gone = posts.gone.plus(_read(posts.there.pop(name)).ceased())
                newest = dict(list(gone.tallies.items())[-MAX_TALLIES:])
                posts.gone = msgspec.structs.replace(gone, tallies=newest)
            yield posts
            data = _encode(posts)
            # Not over the current posts: a process that is killed while writing changes nothing.
            place = _HEAD.size if at - _HEAD.size >= len(data) else at + size
            os.pwrite(file, data, place)
            os.pwrite(file, _HEAD.pack(place, len(data)), 0)


def _read(post: bytes | msgspec.Raw) -> ServerStats:
    """Decode figures, rounded so that they add up exactly."""
    found = _decode(post)
    found.seconds = {operation: _exact(took) for operation, took in found.seconds.items()}
    for tally in (*found.tallies.values(), *found.sent.tallies.values()):
        tally.lateness.sum = _exact(tally.lateness.sum)
        tally.duration.sum = _exact(tally.duration.sum)
    return found


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
    return [make_file(f"bide-{name}") for name in ("usage", "stats", "logins")]


class SharedState:
    """The state that the processes of a server share.

    Args:
        descriptors: see `make_files`; by default the state belongs to this process alone.
    """

    def __init__(self, descriptors: Sequence[int | None] = (None, None, None)) -> None:
        usage, stats, logins = descriptors
        self.usage = QuotaUsage(usage)
        """How much namespaces have used of their quotas."""
        self.stats = SharedStats(stats)
        """What each process has done."""
        self.logins = LoginThrottle(logins)
        """The addresses that have sent wrong tokens."""

    def close(self) -> None:
        """Close the files."""
        for file in (self.usage, self.stats, self.logins):
            file.close()
