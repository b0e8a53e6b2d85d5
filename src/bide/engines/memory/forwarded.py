"""Rows of outboxes: what a queue remembers of them."""

from collections.abc import Callable
from typing import Any

from bide.engines.memory.queue_state import QueueState
from bide.engines.origins import executed_once
from bide.model import commands as cmd
from bide.model.limits import MAX_FORWARDED
from bide.model.replies import Reply

__all__ = ["once"]


def once(
    queue: Callable[[], QueueState], command: cmd.Command, execute: Callable[[Any], Reply]
) -> Reply:
    """Execute a command, not for messages whose rows its queue remembers."""
    if (origin := getattr(command, "origin", None)) is None:
        return execute(command)
    known = queue().forwarded
    known -= {row for row in known if row[0] == origin.outbox and row[1] < origin.before}
    mine = {row for outbox, row in known if outbox == origin.outbox}
    reply, done = executed_once(command, origin, mine, execute)  # type: ignore[type-var]
    known = queue().forwarded  # a put may have made the queue
    known.update((origin.outbox, row) for row in done)
    known -= set(sorted(known)[:-MAX_FORWARDED])
    return reply
