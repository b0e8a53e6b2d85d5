"""What requests that change messages look like, those that can be taken back, and their answers."""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_HTTP_IDS
from bide.model.message import Attempts, Group, Name, Priority
from bide.model.replies import Outcome
from bide.model.times import LATEST
from bide.model.undoing import Bulk, Part
from bide.queue.results import cursor_to, place_of
from bide.queue.undo_steps import is_token
from bide.server import wire


class Moved(wire.Request):
    """When messages are due: `delay` or `at`."""

    delay: wire.Span | None = None
    at: wire.When | None = None


class Changed(Moved, kw_only=True):
    """What to change of a message; what is left out stays as it is."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Any JSON value."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """Bytes, in base64, instead of `body`."""
    priority: Priority | UnsetType = UNSET
    attempts: Attempts | UnsetType = UNSET
    expires: wire.Span | UnsetType | None = UNSET
    """How long after its due time it is still worth delivering; null: without limit."""
    group: Group | UnsetType | None = UNSET
    headers: Annotated[
        msgspec.Raw,
        Meta(
            extra_json_schema={
                "type": ["object", "null"],
                "additionalProperties": {"type": "string"},
            }
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)
    """Text that travels beside the body; null: none."""


class MovedOut(msgspec.Struct, omit_defaults=True):
    """How many messages were changed, and where the next part begins."""

    count: int
    cursor: str | None = None
    """Give it with the next request; all were changed when it is missing."""
    undo: str | None = None
    """The token by which it is taken back: the same for all parts of a change."""


class Undoable(wire.Request, kw_only=True):
    """A change of many messages that can be taken back."""

    undo: bool = False
    """Let it be taken back for ten minutes."""
    dry_run: bool = False
    """Only count."""
    cursor: str | None = None
    """Of the answer before, if it had one."""


class UndoablePurge(Undoable, kw_only=True):
    """Which messages to delete, and whether that can be taken back."""

    state: Literal["delayed", "ready", "dead", "acked", "expired"]
    before: wire.When | None = None
    """Only those that came into this state (delayed, ready: fall due) before this moment."""


class UndoableRevive(Undoable, kw_only=True):
    """Dead letters that are to be delivered again, and whether that can be taken back."""

    ids: Annotated[list[Name], Meta(max_length=MAX_HTTP_IDS)] | None = None
    """Which; when missing, up to 1,000 of the oldest, with `undo` or `dry_run` all of them."""
    delay: wire.Span = 0


class UndoableOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many messages were changed, and how to take that back."""

    count: int
    more: bool
    """Whether more are left."""
    undo: str | UnsetType = UNSET
    """The token by which it is taken back: the same for all parts of a change."""
    cursor: str | UnsetType = UNSET
    """With `undo` or `dry_run`: give it with the next request while `more` is true."""


class RevivedOut(msgspec.Struct, omit_defaults=True):
    """What became of each dead letter; with `undo` only how many were revived, with `dry_run` how
    many would be."""

    outcomes: list[Outcome] | UnsetType = UNSET
    count: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET
    undo: str | UnsetType = UNSET
    """The token by which it is taken back: the same for all parts of a change."""
    cursor: str | UnsetType = UNSET
    """With `undo`: give it with the next request while `more` is true."""


class UndoRequest(wire.Request):
    """Which change to take back."""

    undo: Annotated[str, Meta(max_length=64)]
    """The token of the change."""
    part: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Where to go on: `following` of the answer before."""


class UndoneOut(msgspec.Struct, omit_defaults=True):
    """What taking back a change did: the number of messages, by what became of them."""

    restored: int
    """They are as they were before the change."""
    taken: int
    """Their ids were put again, or they were changed again, since then."""
    claimed: int
    """A worker has got them since then, or they have ended."""
    unknown: int
    """Not restored: it is not certain that they were changed."""
    again: int
    """Taken back before."""
    following: int | UnsetType = UNSET
    """Give it as `part` with the next request; it is all done when it is missing."""


class _Place(NamedTuple):
    """How far a change has come."""

    undo: str
    part: int
    until: int | None
    cursor: str | None


def cursor_of(bulk: Bulk, part: Part) -> str | UnsetType:
    """Return where the next request goes on."""
    if part.cursor is None:
        return UNSET
    return cursor_to(_Place(bulk.undo, part.part, part.until, part.cursor))


def from_cursor(bulk: Bulk, cursor: str | None) -> Bulk:
    """Return a part of a change: the first, or the one where the request before ended.

    Raises:
        InvalidArgument: no request told this cursor.
    """
    if cursor is None:
        return bulk
    place = place_of(cursor, _Place) or _Place("", 0, None, None)
    within = 0 <= place.part <= 1 << 53 and 0 <= (place.until or 0) <= 2 * LATEST
    if not (is_token(place.undo) and within and place.cursor):
        raise InvalidArgument(
            f"cursor={cursor[:100]!r} comes from no change with undo; begin without one"
        )
    return msgspec.structs.replace(bulk, **place._asdict())
