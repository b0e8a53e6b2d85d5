"""Bulk changes that can be undone, and their undo."""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_HTTP_IDS
from bide.model.message import Name
from bide.model.replies import Outcome
from bide.model.times import LATEST
from bide.model.undoing import Bulk, Part, Undo, Undone, Verb
from bide.queue.results import cursor_to, place_of
from bide.server import wire
from bide.server.access.rights import RIGHT_OF_VERB
from bide.server.call import ApiCall
from bide.server.operation import QUEUE, Routes
from bide.undoing.changes import steps_of
from bide.undoing.steps import is_token, nothing

route = Routes("messages")


class MovedOut(msgspec.Struct, omit_defaults=True):
    """How many messages were changed, and where the next part begins."""

    count: int
    cursor: str | None = None
    """Send it with the next request; if it is missing, all were changed."""
    undo: str | None = None
    """The token that undoes the change: the same for all its parts."""


class UndoableRequest(wire.RequestModel, kw_only=True):
    """A bulk change that can be undone."""

    undo: bool = False
    """Allow to undo the change for ten minutes."""
    dry_run: bool = False
    """Only count."""
    cursor: str | None = None
    """The cursor of the previous answer, if it had one."""


class UndoablePurge(UndoableRequest, kw_only=True):
    """The messages to delete, and whether that can be undone."""

    state: Literal["delayed", "ready", "dead", "acked", "expired"]
    before: wire.When | None = None
    """Only those that entered this state (delayed, ready: that are due) before this time."""


class UndoableRevive(UndoableRequest, kw_only=True):
    """The dead letters to deliver again, and whether that can be undone."""

    ids: Annotated[list[Name], Meta(max_length=MAX_HTTP_IDS)] | None = None
    """Their ids; by default up to 1,000 of the oldest, with `undo` or `dry_run` all of them."""
    delay: wire.Span = 0


class UndoableOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many messages were changed, and how to undo that."""

    count: int
    more: bool
    """Whether more are left."""
    undo: str | UnsetType = UNSET
    """The token that undoes the change: the same for all its parts."""
    cursor: str | UnsetType = UNSET
    """With `undo` or `dry_run`: send it with the next request while `more` is true."""


class RevivedOut(msgspec.Struct, omit_defaults=True):
    """The outcome of each dead letter; with `undo` only how many were revived, with `dry_run` how
    many would be."""

    outcomes: list[Outcome] | UnsetType = UNSET
    count: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET
    undo: str | UnsetType = UNSET
    """The token that undoes the change: the same for all its parts."""
    cursor: str | UnsetType = UNSET
    """With `undo`: send it with the next request while `more` is true."""


class UndoRequest(wire.RequestModel):
    """The change to undo."""

    undo: Annotated[str, Meta(max_length=64)]
    """The token of the change."""
    part: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Where to continue: `following` of the previous answer."""


class UndoneOut(msgspec.Struct, omit_defaults=True):
    """The result of an undo: the number of messages, by what happened to them."""

    restored: int
    """They are as they were before the change."""
    taken: int
    """Not restored: their ids were put again, or they were changed again."""
    claimed: int
    """Not restored: they were claimed after the change, or have ended."""
    unknown: int
    """Not restored: it is not certain that they were changed."""
    again: int
    """They were restored earlier."""
    following: int | UnsetType = UNSET
    """Send it as `part` with the next request; if it is missing, all is done."""


class _ChangeProgress(NamedTuple):
    """The progress of a change, which its cursor encodes."""

    undo: str
    """The token that undoes it."""
    part: int
    """The number of the next part."""
    until: int | None
    """See `Bulk.until`."""
    cursor: str | None
    """Where the next part begins, as the store says it."""


PARTS_PER_REQUEST = 20
"""How many parts of a change one request undoes."""


async def execute(call: ApiCall, command: Bulk | Undo) -> Part | Undone:
    """Execute a command that is made of several commands of the store.

    Messages that it restores count as put: they need room within the quotas. So do the undo records
    of changes that leave the messages in the store.

    Raises:
        AccessDenied: the caller may not make, or undo, such a change.
        Problem: a quota has no room.
    """

    def allow(verb: Verb) -> None:
        call.caller.need(RIGHT_OF_VERB[verb])

    if isinstance(command, Bulk):  # the record of an `Undo` has its verb
        allow(command.verb)
    # True: the store is another server, which executes the command itself.
    has_server = call.service.lane.capabilities.has_server
    with await call.visit.admitted([command]):
        reply: Part | Undone = await call.carry_out(
            steps_of(command, has_server=has_server, allow=allow)
        )
    return reply


async def change(call: ApiCall, bulk: Bulk, cursor: str | None) -> UndoableOut:
    """Make the first part of a change that can be undone, or the one at a cursor.

    Raises:
        InvalidArgument: no request returned this cursor.
    """
    if cursor is not None:
        # Anyone may write a cursor: one that cannot be read is no token, and so refused.
        progress = place_of(cursor, _ChangeProgress) or _ChangeProgress("", 0, None, None)
        in_range = 0 <= progress.part <= 1 << 53 and 0 <= (progress.until or 0) <= 2 * LATEST
        if not (is_token(progress.undo) and in_range and progress.cursor):
            raise InvalidArgument(
                f"cursor={cursor[:100]!r} is not from a change with undo; begin without a cursor"
            )
        bulk = msgspec.structs.replace(bulk, **progress._asdict())
    part = await execute(call, bulk)
    assert isinstance(part, Part)
    following: str | UnsetType = UNSET
    more = part.cursor is not None
    if part.cursor is not None:  # the next request continues there
        following = cursor_to(_ChangeProgress(bulk.undo, part.part, part.until, part.cursor))
    return UndoableOut(count=part.count, more=more, undo=bulk.undo, cursor=following)


@route("undo", "POST", f"{QUEUE}/undo", "", problems=(404, 507))
async def undo(call: ApiCall, content: UndoRequest) -> UndoneOut:
    """Undo a bulk change.

    One that was made with `undo`, up to ten minutes ago. Needs the right that the change
    needed. Restored messages count as put; ids that were put again, and messages that were
    claimed after the change, are counted and stay as they are. Up to 10,000 messages; repeat
    with `part` while there is a `following`.
    """
    queue, actor = call.arguments.queue, call.arguments.actor
    command = Undo(queue=queue, undo=content.undo, part=content.part, actor=actor)
    if not is_token(content.undo):
        raise nothing(command)
    total = Undone(following=content.part)
    for _ in range(PARTS_PER_REQUEST):
        if total.following is not None:
            command = msgspec.structs.replace(command, part=total.following)
            undone = await execute(call, command)
            assert isinstance(undone, Undone)
            total = total.plus(undone)
    counts = msgspec.structs.asdict(total)
    return UndoneOut(**{name: count for name, count in counts.items() if count is not None})
