"""A group of a limited queue of the memory engine."""

from msgspec import field
from sortedcontainers import SortedList

from bide.engines import limiter
from bide.engines.rules.record import Record

Place = tuple[int, int, Record]
"""The place of a record in an ordered set: rank, sequence number, and the record. The first two are
unique, so records never compare."""

Head = tuple[int, int, int, int, int, str]
"""The first message of a line, as heads compete: from when (0: now), the priority, of which the
highest is 0, the tag of the group; the rank and the sequence number; the key of the group."""


class Group(limiter.Group, gc=False):
    """A group of a limited queue that has messages in line or leased, or whose rate holds it."""

    line: "SortedList[Place]" = field(default_factory=SortedList)
    head: Head | None = None
