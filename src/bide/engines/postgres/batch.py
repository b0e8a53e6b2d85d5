"""A batch of commands in progress: what the server reports besides the replies."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from bide.engines.bounded_dict import BoundedDict
from bide.engines.postgres.arrays import ascii_json, integers
from bide.engines.postgres.connection import Argument, PostgresCaller
from bide.engines.postgres.constants import FLOOR

FLOOR_SECONDS = 60.0
"""Seconds after which a claim looks everywhere again, since the server's clock may have been set
back. If the look took long, a floor holds for `LOOK_SHARE` times as long, so that looks take little
of the time; but never for longer than `LONGEST_FLOOR_SECONDS`, because the look may only
have waited for a lock."""

LOOK_SHARE = 1_000

LONGEST_FLOOR_SECONDS = 3_600.0

_ALL_ENDED = FLOOR.index("ALL_ENDED")
"""Where a floor has 1 if all transactions that were open at the claim before have ended; else 0."""

NEVER = 1 << 62
"""A time in Unix milliseconds that does not come."""

NO_IDENTITY: Mapping[str, Argument] = {"sender": None, "number": None, "place": None}
"""The `identity` of a batch whose answer no function has to remember."""


class Floors:
    """Where the claims of one connection begin to look, by queue.

    A floor is a list of numbers, named in `FLOOR`. Only `_claim` of the schema reads and changes
    them; it returns the floor of the next claim.
    """

    def __init__(self) -> None:
        self._floors: BoundedDict[str, list[int | None]] = BoundedDict()
        self._until: BoundedDict[str, float] = BoundedDict()
        """By queue: the monotonic time until which its floor counts."""
        self.limited: set[str] = set()
        """Queues whose last claim said that they have limits."""

    def of(self, queue: str) -> bytes | None:
        """Return the floor where a claim begins, as an array; `None`: it looks everywhere."""
        floor = self._floors.get(queue)
        if floor is None or time.monotonic() >= self._until.get(queue, 0.0):
            return None
        return integers(floor)

    def looked(self, queue: str, begin: float) -> None:
        """Note that a claim, which began at this monotonic time, looked everywhere."""
        look_seconds = time.monotonic() - begin
        lasts = max(FLOOR_SECONDS, LOOK_SHARE * look_seconds)
        self._until[queue] = begin + min(lasts, LONGEST_FLOOR_SECONDS)

    def update(self, floors: dict[str, list[int | None]]) -> None:
        """Store the floors that claims returned, by queue."""
        self._floors.update(floors)

    def clear(self) -> None:
        """Forget where claims begin to look: the next ones look everywhere."""
        self._floors.clear()

    def is_calm(self, queue: str) -> bool:
        """Whether all transactions that were open at the claim before the last one have ended."""
        floor = self._floors.get(queue)
        return floor is not None and len(floor) > _ALL_ENDED and floor[_ALL_ENDED] == 1


class Wait(NamedTuple):
    """How long an empty claim can sleep."""

    until: int
    """When it is to claim again, in Unix milliseconds; `NEVER`: not before a put."""
    stored: int | None
    """Until when other processes assume that this one sleeps, so that they wake it for an earlier
    message; `None`: nothing is stored, or was stored too long ago."""


@dataclass
class PostgresBatch:
    """Calls functions of the schema for commands, within one transaction."""

    call: PostgresCaller
    """Calls a function with arguments, and returns its rows, each with named columns."""
    now: int | None
    """Unix milliseconds to go by; `None`: the server's clock."""
    floors: Floors = field(default_factory=Floors)
    waiter: str | None = None
    """The name under which this process sleeps, if it does."""
    identity: Mapping[str, Argument] = field(default_factory=lambda: NO_IDENTITY)
    """The sender, number and place of the only command, if its function remembers its answer; of
    several puts that are joined, the places with their numbers of messages: "0:1,1:5"."""
    escapes: bool = False
    """Whether JSON needs escapes, because the encoding of the database lacks characters."""
    hopeful: bool = False
    """Whether puts may raise `UniqueViolation`: they cost less, and a second try is without it."""
    positions: dict[str, int] = field(default_factory=dict)
    """By queue: the position in the server's log (WAL) after the last put or change. Acks do not
    count: if one is lost, its message is delivered again."""
    moments: dict[str, int] = field(default_factory=dict)
    """By queue: the time of the last put, by the server's clock."""
    new_floors: dict[str, list[int | None]] = field(default_factory=dict)
    """By queue: where the next claim begins."""
    waits: dict[str, Wait] = field(default_factory=dict)
    """By queue: how long its last claim can sleep. Of use only if that was empty."""
    deltas: int = 0
    """The number of changes of the counters that a count added up."""

    def json(self, value: object) -> str:
        """Return a value as JSON that the database can store."""
        return self.storable(msgspec.json.encode(value).decode())

    def storable(self, text: str) -> str:
        """Return JSON that the database can store."""
        return ascii_json(text) if self.escapes else text
