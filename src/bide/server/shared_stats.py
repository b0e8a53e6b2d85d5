"""What the processes of a server have done, added up.

Each process posts what it has done since it began; the process that answers a scrape adds up all
posts. A process never writes another one's figures, and reports its own only once they are posted,
so no sum ever goes back, whichever process is asked.
"""

import math
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

import msgspec

from bide.observing.tally import Stats, Tally
from bide.server.shared_files import SharedFile
from bide.targets.http.stats import PushStats

_HEAD = struct.Struct("=QQ")
"""The offset of the posts, and their size in bytes."""


class ServerStats(Stats):
    """What one process has done since it began, in numbers that add up with those of others."""

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
    """Of how many processes that are there this is."""


class _Posts(msgspec.Struct):
    """What is on a board; what those who are there have posted is read when it is added up."""

    gone: ServerStats = msgspec.field(default_factory=lambda: ServerStats(processes=0))
    """What those have done that have ended."""
    there: dict[str, msgspec.Raw] = {}
    """By process: its id, and a word of its own, for an id may come again."""


_encode = msgspec.msgpack.Encoder().encode
_posts = msgspec.msgpack.Decoder(_Posts).decode
_decode = msgspec.msgpack.Decoder(ServerStats).decode

_FINEST = 1 << 20
"""Sums of seconds are told in parts of so many: these add up exactly, in whatever order, so that a
sum does not go back by a hair when a process ends."""


class SharedStats(SharedFile):
    """Where the processes of a server post their figures.

    The last post of a process that was killed is kept: up to a second of its figures is lost.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._last = b""
        self._left = False

    def post(self, mine: ServerStats) -> None:
        """Let the others know what this process has done so far."""
        told = _encode(mine)
        if told != self._last and not self._left:
            with self._posts() as posts:
                posts.there[self._name] = msgspec.Raw(told)
            self._last = told

    def together(self, mine: ServerStats) -> ServerStats:
        """Return what all processes have done, this one up to now, others up to a second ago."""
        with self._posts() as posts:
            if not self._left:
                posts.there[self._name] = msgspec.Raw(_encode(mine))
        return reduce(ServerStats.plus, map(_read, posts.there.values()), posts.gone)

    def leave(self, mine: ServerStats) -> None:
        """Post for the last time: this process ends."""
        self._left = True
        with self._posts() as posts:
            posts.there.pop(self._name, None)
            posts.gone = posts.gone.plus(_read(_encode(mine)).ceased())

    @contextmanager
    def _posts(self) -> Iterator[_Posts]:
        """Hold the posts; changes are kept."""
        with self.locked() as file:
            head = os.pread(file, _HEAD.size, 0)
            at, size = _HEAD.unpack(head) if head else (_HEAD.size, 0)
            posts = _posts(os.pread(file, size, at)) if size else _Posts()
            for name in [name for name in posts.there if not _lives(name)]:
                posts.gone = posts.gone.plus(_read(posts.there.pop(name)).ceased())
            yield posts
            data = _encode(posts)
            # Beside the posts that count so far: a process killed while writing changes nothing.
            place = _HEAD.size if at - _HEAD.size >= len(data) else at + size
            os.pwrite(file, data, place)
            os.pwrite(file, _HEAD.pack(place, len(data)), 0)


def _read(told: bytes | msgspec.Raw) -> ServerStats:
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
