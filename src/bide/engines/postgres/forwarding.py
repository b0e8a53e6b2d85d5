"""Commands from an outbox: what the schema remembers of its rows."""

from collections.abc import Callable
from typing import Any

from bide.engines.origins import Forwarded, executed_once
from bide.engines.postgres.arrays import texts
from bide.engines.postgres.reading import Run
from bide.model.limits import MAX_FORWARDED
from bide.model.replies import Reply

__all__ = ["once"]


def once(run: Run, command: Any, execute: Callable[[Forwarded], Reply]) -> Reply:
    """Execute a command for the messages whose rows the queue does not remember.

    Args:
        run: calls a function of the schema.
        command: it has an origin.
        execute: executes a command.
    """
    queue, origin = command.queue, command.origin
    rows = run("_forward", queue, origin.outbox, texts(origin.rows), origin.before)
    known = {row.name for row in rows}
    reply, done = executed_once(command, origin, known, execute)
    undone = set(origin.rows) - known - set(done)
    run("_forwarded", queue, origin.outbox, texts(sorted(undone)), MAX_FORWARDED)
    return reply
