"""What each kind of command does: a function of its name in one of these files."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, get_args

from bide.engines.origins import executed_once
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import SQL, json_text
from bide.engines.sqlite.verbs import claim, edit, put, read, settle
from bide.model.commands import Command, Put
from bide.model.limits import MAX_FORWARDED
from bide.model.replies import Reply

__all__ = ["carry_out"]

_NAMED = {name: vars(file)[name] for file in (claim, edit, put, read, settle)
          for name in file.__all__}  # fmt: skip
_VERBS: dict[type, Any] = {kind: _NAMED[kind.__name__.lower()] for kind in get_args(Command)}


def carry_out(session: Session, commands: Sequence[Command]) -> list[Reply]:
    """Execute commands in an open transaction. The caller saves the session."""
    replies: list[Reply] = []
    for together, run in groupby(commands, _together):
        if together is not None:
            replies += put.put(session, [*run])  # type: ignore[list-item]
        else:
            replies += [_carry_out_one(session, command) for command in run]
    return replies


def _together(command: Command) -> bool | None:
    """Return in what consecutive puts agree that are executed as one; `None`: it is no such put.

    One that stores nothing new must not meet what a later one stores.
    """
    return put.stores_new(command) if type(command) is Put and command.origin is None else None


def _carry_out_one(session: Session, command: Any) -> Reply:
    """Execute a command, not for messages whose rows of an outbox its queue remembers."""
    if (origin := getattr(command, "origin", None)) is None:
        reply: Reply = _VERBS[type(command)](session, command)
        return reply
    queue = session.look(command.queue)
    known: set[str] = set()
    if queue is not None:
        if origin.before:
            session.run(SQL.forget_forwarded, (queue.id, origin.outbox, origin.before))
        found = session.run(SQL.forwarded, (queue.id, origin.outbox, json_text(origin.rows)))
        known = {row for (row,) in found}
    outcomes, done = executed_once(
        command, origin, known, lambda left: carry_out(session, [left])[0]
    )
    if done:
        queue = session.look(command.queue)  # a put may have made it
        assert queue is not None
        rows = [(queue.id, origin.outbox, row) for row in done]
        session.run_many(SQL.remember_forwarded, rows)
        session.run(SQL.drop_old_forwarded, {"queue": queue.id, "most": MAX_FORWARDED})
    return outcomes
