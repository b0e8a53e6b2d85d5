"""Bulk changes that can be taken back: the commands, their replies, and what is noted of each.

No store executes these commands itself. They are made of others (`bide.undoing`), by the
process that is next to the store: a client of a server sends them whole.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from bide.model.commands import Cancel, Purge, Reschedule, Revive, Where
from bide.model.errors import InvalidArgument
from bide.model.identity import new_id
from bide.model.message import Message, Priority, State
from bide.model.times import Ms, UnixMs

UNDO_FOR = 600_000
"""How long a bulk change can be taken back, in milliseconds."""

PART = 500
"""The maximum number of messages that one part of a bulk change changes."""

Verb = Literal["cancel", "purge", "revive", "reschedule", "postpone"]


class _Composed(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="command",
    forbid_unknown_fields=True,
):
    queue: str
    undo: str
    """The token by which the change is taken back: an id."""
    part: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Which part of the change, from 0."""
    actor: str | None = None
    """Who changes the messages."""

    only_reads: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False
    weight: ClassVar[int] = PART


class Bulk(_Composed, frozen=True, kw_only=True, tag="bulk"):
    """Change a part of some messages, and note what is needed to take it back. Answers `Part`.

    By `ids`, up to `PART`; or those that match, a part at a time: ask again for the next `part`
    with what the reply says, until it has no `cursor`.
    """

    verb: Verb
    ids: Annotated[list[str], Meta(max_length=PART)] | None = None
    """With `dues` or `if_dues`, no id twice."""
    state: State | None = None
    """For "purge": of messages in this state."""
    where: Where | None = None
    """For "cancel" and "reschedule"; for "purge" of delayed and ready ones: when they are due."""
    until: UnixMs | None = None
    """Without ids, for "revive" and "purge" of dead letters: those that died before this time."""
    cursor: str | None = None
    """Of the reply to the part before; `None`: it is the first."""
    at: UnixMs | None = None
    """For "reschedule": the new due time; `None`: `delay` after the change."""
    delay: Ms = 0
    dues: Annotated[list[UnixMs], Meta(max_length=PART)] = []
    """For "postpone", by ids: the new due time of each message."""
    if_dues: Annotated[list[UnixMs], Meta(max_length=PART)] = []
    """By ids: for each message the time at which it must be due now; empty: any."""
    priority: Priority | None = None
    """For "postpone": the new priority; `None`: it stays."""


class Part(msgspec.Struct, frozen=True, tag="part", omit_defaults=True):
    """What a part of a bulk change did."""

    count: int
    """How many messages were changed."""
    part: int
    """The number of the next part."""
    cursor: str | None = None
    """For the command of the next part; `None`: there is none."""
    until: int | None = None
    """The same: as in `Bulk`."""
    unchanged: list[str] = []
    """Of a change by ids, those that were not changed."""


def bulk_of(
    command: Cancel | Purge | Reschedule | Revive,
    where: Where | None = None,
    *,
    by_id: bool = False,
) -> Bulk:
    """Return the first part of a bulk change, under a new token.

    Args:
        command: what changes, as it is given without undo.
        where: which messages, if the command itself has no rule.
        by_id: only the messages whose ids it names, which may be none.

    Raises:
        InvalidArgument: such a change cannot be taken back.
    """
    common: dict[str, Any] = {
        "queue": command.queue,
        "undo": new_id(),
        "actor": command.actor,
        "ids": list(dict.fromkeys(command.ids or ())) if by_id else None,
    }
    match command:
        case Cancel():
            return Bulk(**common, verb="cancel", where=command.where)
        case Reschedule():
            at, delay = command.at, command.delay
            return Bulk(**common, verb="reschedule", where=where, at=at, delay=delay)
        case Revive():
            return Bulk(**common, verb="revive", delay=command.delay)
    before, state = command.before, command.state
    if state in ("acked", "expired"):
        raise InvalidArgument(
            f"undo= is not for {state} messages: they have left the queue, and a purge forgets them"
        )
    if state == "dead":
        return Bulk(**common, verb="purge", state=state, until=before)
    due_before = None if before is None else Where(before=before)
    return Bulk(**common, verb="purge", state=state, where=due_before)


class Undoable(int):
    """How many messages were changed, and how to take that back.

    Example:
        >>> import bide
        >>> mails = bide.Queue("mails", "memory://")
        >>> outcome = mails.put("hello", group="order:42", delay="1h")
        >>> cancelled = mails.cancel(group="order:42", undo=True)
        >>> cancelled, mails.undo(cancelled.undo).restored
        (1, 1)
    """

    undo: str
    """The token for `Queue.undo`."""

    def __new__(cls, count: int, undo: str) -> "Undoable":
        """Return a count with a token."""
        self = super().__new__(cls, count)
        self.undo = undo
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        """Let it be copied, and sent to another process."""
        return int(self), self.undo


class Undo(_Composed, frozen=True, kw_only=True, tag="undo"):
    """Take back a part of a bulk change. Answers `Undone`."""


class Undone(msgspec.Struct, frozen=True, tag="undone", omit_defaults=True):
    """What taking back a bulk change did: the number of messages, by what became of them."""

    restored: int = 0
    """They are as they were before the change."""
    taken: int = 0
    """Their ids were put again, or they were changed again, since then."""
    claimed: int = 0
    """A worker has got them since then, or they have ended."""
    unknown: int = 0
    """Not restored, because it is not certain that they were changed, or not restored before: a
    process died or lost its store meanwhile."""
    again: int = 0
    """This change of them was taken back before."""
    following: int | None = None
    """The number of the next part; `None`: there is none."""

    def plus(self, other: "Undone") -> "Undone":
        """Return the sum with the next part."""
        return Undone(
            self.restored + other.restored,
            self.taken + other.taken,
            self.claimed + other.claimed,
            self.unknown + other.unknown,
            self.again + other.again,
            other.following,
        )


class UndoRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is noted of a part before it is changed."""

    queue: str
    verb: Verb
    messages: list[Message]
    """As they were."""
