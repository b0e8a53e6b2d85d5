"""Commands from an outbox: what a store remembers of its rows."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from bide.engines.origins import executed_once
from bide.engines.sqlite.session import Session, json_text
from bide.engines.sqlite.statements import SQL
from bide.model.limits import MAX_FORWARDED
from bide.model.replies import Reply

__all__ = ["with_origins"]

Verb = Callable[[Session, list[Any]], list[Reply]]


def with_origins(verb: Verb) -> Verb:
    """Return the function for consecutive commands, some of which may have an origin."""

    def execute(session: Session, run: list[Any]) -> list[Reply]:
        replies: list[Reply] = []
        for from_outbox, group in groupby(run, lambda command: command.origin is not None):
            if from_outbox:
                replies += [_once(session, command, verb) for command in group]
            else:
                replies += verb(session, list(group))
        return replies

    return execute


def _once(session: Session, command: Any, verb: Verb) -> Reply:
    origin = command.origin
    queue = session.look(command.queue)
    known: set[str] = set()
    if queue is not None:
        if origin.before:
            session.run(SQL.forget_forwarded, (queue.id, origin.outbox, origin.before))
        found = session.run(SQL.forwarded, (queue.id, origin.outbox, json_text(origin.rows)))
        known = {row for (row,) in found}

    def execute(left: Any) -> Reply:
        (reply,) = verb(session, [left])
        return reply

    reply, done = executed_once(command, origin, known, execute)
    if done:
        queue = session.look(command.queue)
        assert queue is not None
        rows = [(queue.id, origin.outbox, row) for row in done]
        session.run_many(SQL.remember_forwarded, rows)
        session.run(SQL.drop_old_forwarded, {"queue": queue.id, "most": MAX_FORWARDED})
    return reply
