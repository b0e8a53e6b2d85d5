"""Limited queues: lines, heads, tags and rates, for engines that keep them in structs.

- A *line*: the ready messages of a group, by priority, then due time. Messages without a group are
  a group of their own, which no limit of groups binds.
- A *head*: the first message of a line. Heads compete: the highest priority first, of equals the
  smallest tag, then the earliest due time. A group that is full has no head, and one that waits for
  its rate has a head that does not compete yet.
- A *tag* of each group lets groups share fairly: start-time fair queueing (Goyal, Vin and Cheng,
  1996). The queue keeps the tag of the head that was served last, its virtual time. A group that is
  served gets `max(virtual time, tag) + 1`; one that is new gets the virtual time + 1. So each
  waiting group is served once in a round, and a new group joins the next round.
- A *rate*, one of the queue and one of each group: see `bide.model.times`.

Times are microseconds.
"""

from abc import ABC, abstractmethod

import msgspec

from bide.engines.rules.record import Record
from bide.model.commands import Configure
from bide.model.replies import Limited
from bide.model.times import LIMITS, MICROSECONDS, served


class Limits(msgspec.Struct, gc=False):
    """The limits of a queue, and what they depend on."""

    limit: int = 0
    """How many of its messages may be leased at a time; 0: any number."""
    rate: int = 0
    """Microseconds from one delivery to the next; 0: none."""
    group_limit: int = 0
    """The same of each group."""
    group_rate: int = 0
    tag: int = 0
    """Of the head that was served last: the virtual time."""
    last: int = 0
    """When the last message counts as served (see `bide.model.times`)."""


class Group(msgspec.Struct, gc=False):
    """A group of a limited queue."""

    key: str
    """Its name behind "="; empty for messages without a group, which no limit of a group binds."""
    running: int = 0
    """How many of its messages are leased."""
    tag: int = 0
    """Its place in the fair order, smallest first: see *tag* at the head of this file."""
    last: int = 0
    """When its last message counts as served."""


def key_of(group: str | None) -> str:
    """Return the key of a group."""
    return "" if group is None else f"={group}"


class Limiter(ABC):
    """What the limits of one queue allow.

    Args:
        limits: of the queue.
        now: the time in microseconds, which the caller may set again.
    """

    def __init__(self, limits: Limits, now: int) -> None:
        self.limits = limits
        self.now = now
        self.running = 0
        """How many messages of the queue are leased."""

    def __bool__(self) -> bool:
        """Whether the queue is limited."""
        limits = self.limits
        return bool(limits.limit or limits.rate or limits.group_limit or limits.group_rate)

    def configure(self, command: Configure) -> bool:
        """Change the limits that are given; return whether one has changed."""
        limits, was_limited = self.limits, bool(self)
        values_before = [getattr(limits, name) for name in LIMITS]
        for name in LIMITS:
            if (value := getattr(command, name)) is not None:
                setattr(limits, name, value)
        if [getattr(limits, name) for name in LIMITS] == values_before:
            return False
        if not self:  # no limit is left
            self.clear()
        elif not was_limited:
            self.begin_lines()
        else:
            self.reopen()
        return True

    @abstractmethod
    def clear(self) -> None:
        """Forget all limits and groups: the queue is not limited any more."""

    @abstractmethod
    def begin_lines(self) -> None:
        """Line up the ready messages of each group, and count its leased ones.

        Called when a queue that had no limits gets its first one.
        """

    @abstractmethod
    def reopen(self) -> None:
        """Give heads to groups that a changed limit holds no more."""

    @abstractmethod
    def _group(self, key: str) -> Group:
        """Return the group with a key."""

    @property
    def open(self) -> bool:
        """Whether the limits of the queue allow a message now."""
        return not self.full and self.reopens <= self.now

    @property
    def full(self) -> bool:
        """Whether no more messages may be leased."""
        return 0 < self.limits.limit <= self.running

    @property
    def reopens(self) -> int:
        """From when the rate of the queue allows a message; 0: at any time."""
        return self.limits.last + self.limits.rate if self.limits.rate else 0

    def is_full(self, group: Group) -> bool:
        """Return whether no more messages of a group may be leased."""
        return bool(group.key) and 0 < self.limits.group_limit <= group.running

    def reopens_for(self, group: Group) -> int:
        """Return from when the rate of groups allows a message of one; 0: at any time."""
        rate = self.limits.group_rate
        return group.last + rate if group.key and rate else 0

    def serve(self, group: Group) -> None:
        """Count a message of a group that is leased now."""
        limits = self.limits
        limits.tag = max(limits.tag, group.tag)
        group.tag = limits.tag + 1
        group.running += 1
        self.running += 1
        limits.last = served(limits.last, limits.rate, self.now)
        if group.key:
            group.last = served(group.last, limits.group_rate, self.now)

    def holds(self, record: Record) -> Limited | None:
        """Return which limit holds a ready record back; `None`: none does."""
        group = self._group(key_of(record.group))
        limits, group_reopens = self.limits, self.reopens_for(group)
        if self.full:
            return Limited("limit", limits.limit, self.running)
        if self.is_full(group):
            return Limited("group_limit", limits.group_limit, group.running)
        # Of both rates, the one that holds it for longer.
        if self.reopens > max(self.now, group_reopens):
            until = -(-self.reopens // MICROSECONDS)  # rounded up
            return Limited("rate", limits.rate, self.running, until)
        if group_reopens > self.now:
            until = -(-group_reopens // MICROSECONDS)
            return Limited("group_rate", limits.group_rate, group.running, until)
        return None
