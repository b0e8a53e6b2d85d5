"""Reads of messages by id, and of how they ended."""

from bide.engines.cursor import Budget
from bide.engines.memory.queue_state import QueueState
from bide.model import commands as cmd
from bide.model.ended import within_budget
from bide.model.message import Message, size_of
from bide.model.replies import Ends, Found

__all__ = ["find", "history"]


def find(queue: QueueState, command: cmd.Find, now: int) -> Found:
    """Return the messages with some ids, as many as the budget allows."""
    budget = Budget(command.max_bytes)
    found: list[Message | None] = []
    for id in command.ids:
        record = queue.records.get(id)
        if record is not None and not budget.takes(size_of(record)):
            break
        found.append(None if record is None else record.message(queue.name, now))
    return Found(found)


def history(queue: QueueState, command: cmd.History, now: int) -> Ends:
    """Return how messages with an id have ended."""
    record = queue.records.get(command.id)
    return Ends(
        None if record is None else record.seen(now),
        within_budget(queue.ends.of(command.id, now), command.max_bytes),
    )
