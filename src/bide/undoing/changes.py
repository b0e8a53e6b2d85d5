"""Bulk changes that can be taken back, whole: their parts, and the token."""

from collections.abc import Callable, Generator
from typing import Any, cast

import msgspec

from bide.lane.lane import Lane
from bide.lane.steps import Steps
from bide.model.commands import Cancel, Command, Purge, Reschedule, Revive, Where
from bide.model.errors import InvalidArgument
from bide.model.identity import new_id
from bide.model.parts import in_parts
from bide.model.undoing import PART, Bulk, Part, Undo, Undone, Verb
from bide.undoing.steps import bulk_steps, is_token, nothing, undo_steps


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
    due = None if before is None else Where(before=before)
    return Bulk(**common, verb="purge", state=state, where=due)


def check_undo(undo: bool, several: bool, dry_run: bool, within: object) -> None:
    """Refuse `undo=True` where it has no meaning.

    Raises:
        InvalidArgument: it has none.
    """
    if undo and not several:
        raise InvalidArgument(
            "undo= is for changes of many messages, by group=, after= or before=; a change "
            "of one message is taken back with put, reschedule or edit"
        )
    if undo and (dry_run or within is not None):
        name = "dry_run" if dry_run else "within"
        raise InvalidArgument(f"undo= and {name}= cannot be combined; leave one of them out")


Execute = Callable[[Bulk | Undo], Generator[Any, Any, Any]]
"""Executes a part of a bulk change, or of taking it back, in steps; returns its reply."""


def in_store(lane: Lane) -> Execute:
    """Return what executes parts in a store, which must be open: else an event loop would wait."""
    return lambda part: steps_of(part, takes_back=lane.capabilities.takes_back)


def alone(part: Bulk | Undo) -> Generator[Bulk | Undo, Any, Any]:
    """Yield a part, for callers that make the steps of each part themselves."""
    return (yield part)


def whole(bulk: Bulk, execute: Execute) -> Generator[Any, Any, Undoable]:
    """Make a bulk change in parts; return how many messages were changed, with the token.

    An error gets a note about what was changed before.
    """
    count = 0
    try:
        for ids in [None] if bulk.ids is None else in_parts(bulk.ids, PART):
            bulk = msgspec.structs.replace(bulk, ids=None if ids is None else list(ids))
            while True:
                reply: Part = yield from execute(bulk)
                count += reply.count
                bulk = msgspec.structs.replace(
                    bulk, part=reply.part, cursor=reply.cursor, until=reply.until
                )
                if reply.cursor is None:
                    break
    except BaseException as error:
        error.add_note(f"What was changed before can be taken back: undo({bulk.undo!r})")
        raise
    return Undoable(count, bulk.undo)


def whole_undo(
    queue: str, undo: str, actor: str | None, execute: Execute
) -> Generator[Any, Any, Undone]:
    """Take back a bulk change in parts; return what was restored in all.

    Raises:
        NothingToUndo: this is no token.
        InvalidArgument: this is no text.
    """
    if not isinstance(undo, str):
        raise InvalidArgument(
            f"undo={undo!r} is not a token: make the change with undo=True, and give the attribute "
            "`undo` of its result"
        )
    part = Undo(queue=queue, undo=undo, actor=actor)
    if not is_token(undo):
        raise nothing(part)
    total = Undone()
    while True:
        total = total.plus((yield from execute(part)))
        if total.following is None:
            return total
        part = msgspec.structs.replace(part, part=total.following)


def steps_of(
    command: Bulk | Undo, *, takes_back: bool, allow: Callable[[Verb], object] = lambda verb: None
) -> Steps[Any]:
    """Execute a part of a bulk change, or of taking it back.

    Args:
        command: which one.
        takes_back: whether the store executes it, as a server does; see `Capabilities`.
        allow: raises if the caller may not take back such a change.
    """
    if takes_back:
        return (yield cast("Command", command))
    if isinstance(command, Bulk):
        return (yield from bulk_steps(command))
    return (yield from undo_steps(command, allow))
