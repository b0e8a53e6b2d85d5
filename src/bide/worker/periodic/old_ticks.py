"""Ticks as a chain of messages: what stores of checkouts before the first version may have.

Each was a message whose id was its time, and put the next one before it ran.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from bide.model.message import Message
from bide.model.recurrence import Recurrence, parse
from bide.worker.periodic.chain import moment_of


class OldTick(msgspec.Struct, frozen=True):
    """The body of a tick of a chain. Times are Unix milliseconds."""

    due: int
    previous: int | None
    """The time of the tick before it that was not skipped; `None`: it is the first one."""
    spec: str
    """The `Recurrence.spec` of the schedule that put it."""
    since: int
    """When the process with this schedule started."""
    missed: bool = False
    """Whether it stands for ticks that were missed."""

    @property
    def recurrence(self) -> Recurrence:
        """The times of its schedule.

        Raises:
            InvalidArgument: they cannot be computed here.
        """
        return parse(self.spec)


def read_old_tick(message: Message) -> OldTick | None:
    """Return the tick in a message; `None` if it is none, such as a message put by a user."""
    try:
        tick = msgspec.json.decode(message.data, type=OldTick) if message.json else None
    except msgspec.MsgspecError:
        return None
    return tick if tick is not None and moment_of(message.id) == tick.due else None


class OldLink(NamedTuple):
    """A tick of a chain that waits or is leased."""

    message: Message
    tick: OldTick

    @property
    def is_untouched(self) -> bool:
        """Whether no worker has begun with it."""
        return is_untouched(self.message)


def old_links(messages: Iterable[Message]) -> list[OldLink]:
    """Return the ticks of a chain among messages, in the order of their times."""
    links = [
        OldLink(message, tick)
        for message in messages
        if (tick := read_old_tick(message)) is not None
    ]
    return sorted(links, key=lambda link: link.tick.due)


def is_untouched(message: Message) -> bool:
    """Return whether no worker has begun with a message that waits."""
    waits = message.state in ("delayed", "ready")
    return waits and not message.attempt and not message.failures
