"""Whether the limits of a queue allow a message, for engines that keep the counters in structs.

Times are microseconds; those at which a lease made room are milliseconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from bide.engines.rules.record import Record
from bide.model.commands import Configure
from bide.model.rank import (
    GAP,
    LOOK_GROUPS,
    LOOK_MESSAGES,
    LOOK_MOST,
    after_service,
    delayed_reach,
    rank_when_ready,
)
from bide.model.replies import Limited
from bide.model.times import LIMITS, served


class Limits(msgspec.Struct, gc=False):
    """The limits of a queue, and what they depend on."""

    limit: int = 0
    rate: int = 0
    group_limit: int = 0
    group_rate: int = 0
    turn: int = 0
    """See `bide.model.rank`."""
    last: int = 0
    """When the last message counts as served (see `bide.model.times`)."""
    freed: int = 0
    """When a lease ended last while the queue was full."""
    looked: str = ""
    """The last group that a claim has looked ahead at; empty: there were no more."""


class Group(msgspec.Struct, gc=False):
    """A group of a limited queue."""

    key: str
    """Its name behind "="; empty for messages without a group, which no limit of a group binds."""
    running: int = 0
    """How many of its messages are leased."""
    turn: int = 0
    last: int = 0
    freed: int = 0


def key_of(group: str | None) -> str:
    """Return the key of a group."""
    return "" if group is None else f"={group}"


class Limiter(ABC):
    """What the limits of one queue allow.

    Args:
        limits: of the queue.
        now: the time, which the caller may set again.
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
        limits, was_limited, was_full = self.limits, bool(self), self.full
        before = [getattr(limits, name) for name in LIMITS]
        for name in LIMITS:
            if (value := getattr(command, name)) is not None:
                setattr(limits, name, value)
        if [getattr(limits, name) for name in LIMITS] == before:
            return False
        if not self:
            self.clear()
        elif not was_limited:
            self.begin()
        else:
            if was_full and not self.full:
                limits.freed = self.now // 1000
            self.restand()
        return True

    @abstractmethod
    def clear(self) -> None:
        """Forget all limits and groups: the queue is not limited any more."""

    @abstractmethod
    def begin(self) -> None:
        """Count the leased messages of each group, and line up ready ones: it is limited now."""

    def restand(self) -> None:  # noqa: B027  (memory computes it on demand)
        """Let groups take turns that a changed limit holds no more, where that is stored."""

    @abstractmethod
    def _group(self, key: str) -> Group:
        """Return the group with a key."""

    def look_ahead(
        self, groups: Iterable[tuple[str, bool]], messages_of: Callable[[str], Sequence[Any]]
    ) -> list[tuple[Any, ...]]:
        """Return the first due message of each group without a line: see `bide.model.rank`.

        Args:
            groups: the groups after `looked` by name, and whether they have a line.
            messages_of: returns the messages of a group, up to `LOOK_MOST` + 1: tuples that begin
                with the rank, `None` if it is not delayed, and the sequence number.
        """
        reach = delayed_reach(self.now // 1000)
        firsts: list[tuple[Any, ...]] = []
        seen = 0
        self.limits.looked = ""
        for count, (name, has_line) in enumerate(groups, 1):
            if not has_line:
                messages = messages_of(name)
                seen += len(messages)
                due = [
                    message
                    for message in messages
                    if message[0] is not None and message[0] <= reach
                ]
                if due and len(messages) <= LOOK_MOST:
                    firsts.append(
                        min(due, key=lambda message: (rank_when_ready(message[0]), message[1]))
                    )
            if count == LOOK_GROUPS or seen >= LOOK_MESSAGES:
                self.limits.looked = name
                break
        return sorted(firsts)

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

    def lease(self, group: Group) -> None:
        """Count a message that is leased now, and give its group the last turn."""
        limits = self.limits
        limits.turn = after_service(limits.turn)
        group.turn = limits.turn + GAP
        group.running += 1
        self.running += 1
        limits.last = served(limits.last, limits.rate, self.now)
        group.last = served(group.last, limits.group_rate, self.now)

    def end_leases(self, group: Group, count: int = 1) -> None:
        """Count messages of a group that are not leased any more."""
        if self.full:
            self.limits.freed = self.now // 1000
        if self.is_full(group):
            group.freed = self.now // 1000
        group.running -= count
        self.running -= count

    def freed_at(self, record: Record) -> int:
        """Return when limits stopped holding back a record that is served next.

        0: no limit has held it back since it was due.
        """
        group = self._group(key_of(record.group))
        reopens = -(-max(self.reopens, self.reopens_for(group)) // 1000)
        freed = max(self.limits.freed, group.freed, reopens)
        return freed if freed > record.due else 0

    def holds(self, record: Record) -> Limited | None:
        """Return which limit holds a record back."""
        group = self._group(key_of(record.group))
        limits, reopens = self.limits, self.reopens_for(group)
        if self.full:
            return Limited("limit", limits.limit, self.running)
        if self.is_full(group):
            return Limited("group_limit", limits.group_limit, group.running)
        if self.reopens > max(self.now, reopens):
            return Limited("rate", limits.rate, self.running, -(-self.reopens // 1000))
        if reopens > self.now:
            return Limited("group_rate", limits.group_rate, group.running, -(-reopens // 1000))
        return None
