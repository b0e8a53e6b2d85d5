"""Messages that were claimed while their windows are closed: they go back until these open."""

from collections import defaultdict
from collections.abc import Sequence

from bide.model.commands import Command, Lease, Reschedule, RetryCommand
from bide.model.message import Message
from bide.model.time_rule import time_rule_of


def return_commands(
    queue: str, closed: Sequence[tuple[Message, Lease, int]], now: int
) -> list[Command]:
    """Return the commands that return claimed messages until their windows open.

    That counts no attempt, and a message stays as late as it is. If it was due while its window was
    closed, as after a reschedule or a revival, the opening is its due time, from which on it may
    expire.

    Args:
        queue: of the messages.
        closed: the messages, their leases, and when their windows open.
        now: when they were claimed.
    """
    leases: dict[int, list[Lease]] = defaultdict(list)
    ids: dict[int, list[str]] = defaultdict(list)
    versions: dict[int, list[str]] = defaultdict(list)
    for message, lease, opening in closed:
        leases[opening].append(lease)
        due = message.due if message.planned is None else message.planned
        if message.expires is not None and time_rule_of(message.rule or "").opening(due) > now:
            ids[opening].append(message.id)
            versions[opening].append(message.version)
    commands: list[Command] = []
    for opening, waiting in leases.items():
        commands.append(RetryCommand(queue, waiting, opening - now, release=True))
        if ids[opening]:
            commands.append(Reschedule(queue, ids[opening], at=opening, versions=versions[opening]))
    return commands
