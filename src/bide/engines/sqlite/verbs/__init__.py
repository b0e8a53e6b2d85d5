"""What each kind of command does.

A function of its name in one of these files, or in `bide.engines.message_verbs`.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, get_args

from bide.engines import message_verbs
from bide.engines.origins import executed_once
from bide.engines.sqlite.records import change_each
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import SQL, json_text
from bide.engines.sqlite.verbs import claim, manage, put, read, settle
from bide.model.commands import Command, Put
from bide.model.limits import MAX_FORWARDED
from bide.model.replies import Reply

__all__ = ["carry_out"]

_NAMED = {name: vars(file)[name] for file in (claim, manage, put, read, settle)
          for name in file.__all__}  # fmt: skip


def _verb(kind: type) -> Any:
    """Return what executes the commands of a kind."""
    name = kind.__name__.lower()
    if name in _NAMED:
        return _NAMED[name]
    change = getattr(message_verbs, name)
    return lambda session, command: change_each(
        session, command, getattr(command, command.named_by), change
    )


_VERBS = {kind: _verb(kind) for kind in get_args(Command)}


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
    """Return a key that is equal for consecutive puts that run as one; `None`: it is no such put.

    A put that stores nothing new must not find what a later one stores.
    """
    return put.stores_new(command) if type(command) is Put and command.origin is None else None


def _carry_out_one(session: Session, command: Any) -> Reply:
    """Execute a command; skip messages whose outbox rows its queue remembers."""
    if (origin := getattr(command, "origin", None)) is None:
        reply: Reply = _VERBS[type(command)](session, command)
        return reply
    queue = session.look(command.queue)
    if origin.before:
        session.run(SQL.forget_forwarded, (queue.id, origin.outbox, origin.before))
    found = session.run(SQL.forwarded, (queue.id, origin.outbox, json_text(origin.rows)))
    known = {row for (row,) in found}
    outcomes, done = executed_once(
        command, origin, known, lambda left: carry_out(session, [left])[0]
    )
    if done:
        queue = session.look(command.queue)  # a put may have made it
        rows = [(queue.id, origin.outbox, row) for row in done]
        session.run_many(SQL.remember_forwarded, rows)
        session.run(SQL.drop_old_forwarded, {"queue": queue.id, "most": MAX_FORWARDED})
    return outcomes
