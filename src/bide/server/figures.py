"""What all processes of a server have done, kept in a file without a name that they share.

Each process posts what it has done since it began, and whoever is scraped adds up what all have
posted. A process never writes another one's figures, and tells of its own only once they are
posted, so no sum ever goes back, whichever process is asked.
"""

import fcntl
import math
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, reduce
from typing import Self

import msgspec

from bide.observing.tally import Tally, added
from bide.server.uses import make_file
from bide.targets.http.push_stats import PushStats

__all__ = ["Board", "Figures"]

_HEAD = struct.Struct("=QQ")
"""Where the posts begin, and how many bytes they take."""


class Figures(msgspec.Struct):
    """What one process has done since it began, in numbers that add up with those of others."""

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
    """Of how many processes that are there this is."""

    def plus(self, other: Self) -> "Figures":
        """Return both together."""
        requests, seconds = dict(self.requests), dict(self.seconds)
        for answered, count in other.requests.items():
            requests[answered] = requests.get(answered, 0) + count
        for operation, took in other.seconds.items():
            seconds[operation] = seconds.get(operation, 0.0) + took
        return Figures(
            requests,
            seconds,
            added([self.tallies, other.tallies]),
            self.sent.plus(other.sent),
            self.waiting + other.waiting,
            self.processes + other.processes,
        )

    def ceased(self) -> "Figures":
        """Return what stays true once the process has ended."""
        tallies = {queue: tally.ceased() for queue, tally in self.tallies.items()}
        return Figures(self.requests, self.seconds, tallies, self.sent.ceased(), 0, 0)


class _Posts(msgspec.Struct):
    """What is on a board; what those who are there have posted is read when it is added up."""

    gone: Figures = msgspec.field(default_factory=lambda: Figures(processes=0))
    """What those have done that have ended."""
    there: dict[str, msgspec.Raw] = {}
    """By process: its id, and a word of its own, for an id may come again."""


_encode = msgspec.msgpack.Encoder().encode
_posts = msgspec.msgpack.Decoder(_Posts).decode
_decode = msgspec.msgpack.Decoder(Figures).decode

_FINEST = 1 << 20
"""Sums of seconds are told in parts of so many: these add up exactly, in whatever order, so that a
sum does not go back by a hair when a process ends."""


class Board:
    """Where the processes of a server tell each other their figures.

    It is read and written under a lock of the file, which the system lets go when a process dies.
    What a process that was killed had posted last is kept: up to a second of its figures is lost,
    and none of the store's.

    Args:
        descriptor: of the file, see `make_file`; one of this process alone by default.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._given = descriptor
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._last = b""
        self._left = False

    @cached_property
    def _file(self) -> int:
        return make_file("bide-figures") if self._given is None else self._given

    def post(self, mine: Figures) -> None:
        """Let the others know what this process has done so far."""
        told = _encode(mine)
        if told != self._last and not self._left:
            with self._posts() as posts:
                posts.there[self._name] = msgspec.Raw(told)
            self._last = told

    def together(self, mine: Figures) -> Figures:
        """Return what all processes have done, this one up to now, others up to a second ago."""
        with self._posts() as posts:
            if not self._left:
                posts.there[self._name] = msgspec.Raw(_encode(mine))
        return reduce(Figures.plus, map(_read, posts.there.values()), posts.gone)

    def leave(self, mine: Figures) -> None:
        """Post for the last time: this process ends."""
        self._left = True
        with self._posts() as posts:
            posts.there.pop(self._name, None)
            posts.gone = posts.gone.plus(_read(_encode(mine)).ceased())

    def close(self) -> None:
        """Let go of the file."""
        if self._given is not None or "_file" in vars(self):
            os.close(self._file)
            self._file = -1  # whoever is late shall not meet another file under this number

    @contextmanager
    def _posts(self) -> Iterator[_Posts]:
        """Hold what is posted; what is changed in it is kept."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            head = os.pread(self._file, _HEAD.size, 0)
            at, size = _HEAD.unpack(head) if head else (_HEAD.size, 0)
            posts = _posts(os.pread(self._file, size, at)) if size else _Posts()
            for name in [name for name in posts.there if not _lives(name)]:
                posts.gone = posts.gone.plus(_read(posts.there.pop(name)).ceased())
            yield posts
            data = _encode(posts)
            # Beside what counts so far: whoever is killed while writing has changed nothing.
            place = _HEAD.size if at - _HEAD.size >= len(data) else at + size
            os.pwrite(self._file, data, place)
            os.pwrite(self._file, _HEAD.pack(place, len(data)), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _read(told: bytes | msgspec.Raw) -> Figures:
    """Return figures as they add up exactly."""
    found = _decode(told)
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
