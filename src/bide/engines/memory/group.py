"""A group of a limited queue of the memory engine."""

from typing import NamedTuple

from msgspec import field
from sortedcontainers import SortedList

from bide.engines import limiter
from bide.engines.rules.record import Record

Place = tuple[int, int, Record]
"""The place of a record in an ordered set: rank, sequence number, and the record. The first two are
unique, so records never compare."""


class Head(NamedTuple):
    """The first message of a line. Heads compare in the order of serving."""

    competes_from: int
    """When the rate of its group allows it, in microseconds; 0: now."""
    weight: int
    """Its priority, of which the highest is 0."""
    tag: int
    """The tag of its group."""
    rank: int
    seq: int
    key: str
    """The key of its group."""


class Group(limiter.Group, gc=False):
    """A group of a limited queue that has messages in line or leased, or whose rate holds it."""

    line: "SortedList[Place]" = field(default_factory=SortedList)
    """Its ready messages."""
    head: Head | None = None
    """`None`: it is full, or has no line."""
