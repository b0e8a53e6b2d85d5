"""Bulk changes that can be taken back, whole: their parts, and the token."""

from collections.abc import Callable, Generator
from typing import Any, cast

import msgspec

from bide.lane.lane import Lane
from bide.lane.steps import Steps
from bide.model.commands import Cancel, Command, Purge, Reschedule, Revive, Where
from bide.model.errors import InvalidArgument
from bide.model.parts import in_parts
from bide.model.undoing import PART, Bulk, Part, Undo, Undoable, Undone, Verb, bulk_of
from bide.undoing.steps import bulk_steps, is_token, nothing, undo_steps

Execute = Callable[[Bulk | Undo], Generator[Any, Any, Any]]
"""Executes a part of a bulk change, or of taking it back, in steps; returns its reply."""


def in_store(lane: Lane) -> Execute:
    """Return what executes parts in a store, which must be open: else an event loop would wait."""
    return lambda part: steps_of(part, has_server=lane.capabilities.has_server)


def yield_part(part: Bulk | Undo) -> Generator[Bulk | Undo, Any, Any]:
    """Yield a part as it is, for a caller that executes the parts itself."""
    return (yield part)


def change_in_parts(bulk: Bulk, execute: Execute) -> Generator[Any, Any, Undoable]:
    """Make a bulk change in parts; return how many messages were changed, with the token.

    Args:
        bulk: the first part, with all ids, or with the condition that messages match.
        execute: executes each part; with `yield_part` the caller does.

    Raises:
        Exception: what `execute` raises, with a note about what was changed before.
    """
    count = 0
    # `None`: the messages that match the condition, which the cursor divides into parts.
    ids_of_parts = [None] if bulk.ids is None else in_parts(bulk.ids, PART)
    try:
        for ids in ids_of_parts:
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


def undo_in_parts(
    queue: str, undo: str, actor: str | None, execute: Execute
) -> Generator[Any, Any, Undone]:
    """Take back a bulk change in parts; return what was restored in all.

    Raises:
        NothingToUndo: `undo` has not the form of a token.
        InvalidArgument: `undo` is not a `str`.
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
    command: Bulk | Undo, *, has_server: bool, allow: Callable[[Verb], object] = lambda verb: None
) -> Steps[Any]:
    """Execute one part of a bulk change, or of an undo.

    Args:
        command: the part.
        has_server: whether a server executes the part; else its steps are done here. See
            `Capabilities`.
        allow: raises if the caller may not take back a change of this verb. Not called with
            `has_server`: that server checks.

    Returns:
        A `Part` of a bulk change; an `Undone` of an undo.
    """
    if has_server:  # for it, the whole part is one command
        return (yield cast("Command", command))
    if isinstance(command, Bulk):
        return (yield from bulk_steps(command))
    return (yield from undo_steps(command, allow))


def changing(
    command: Cancel | Purge | Reschedule | Revive,
    lane: Lane,
    *,
    where: Where | None = None,
    by_id: bool = False,
) -> Steps[Undoable]:
    """Make a bulk change that can be taken back, in a store that is open; see `bulk_of`."""
    return (yield from change_in_parts(bulk_of(command, where, by_id=by_id), in_store(lane)))


def taking_back(queue: str, undo: str, actor: str | None, lane: Lane) -> Steps[Undone]:
    """Take back a bulk change, in a store that is open."""
    return (yield from undo_in_parts(queue, undo, actor, in_store(lane)))
