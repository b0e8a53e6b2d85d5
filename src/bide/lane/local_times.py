"""Messages with a local date, or of a cron in a zone, in claims: none is early by newer rules.

Where a process has greater data of time zones than those by which a claimed message was planned,
and it is due later by these, it waits until then. The caller of the claim does not see it.
"""

from collections import defaultdict
from collections.abc import Sequence
from threading import Lock

from bide.model.command_parts import NewTime
from bide.model.commands import Command, Edit, Lease, RetryCommand
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.replanning import Replanned, has_zone, is_behind, replanned
from bide.model.zones import own_zones

_behind: dict[str, int] = {}
"""Queues in which claims have shown messages that were planned by smaller data, and when the latest
of them was first put, in Unix milliseconds."""

_behind_lock = Lock()

MOST_BEHIND = 10_000
"""The maximum number of queues that are remembered so."""


def later(message: Message, queue: str, now: int) -> Replanned | None:
    """Return what becomes of a claimed message that is due later by the data of this process.

    `None`: it is to be delivered.

    Args:
        message: as it was claimed.
        queue: its queue.
        now: when it was claimed.
    """
    if not has_zone(message):
        return None
    zones = own_zones()
    if is_behind(message, zones):
        with _behind_lock:
            if queue in _behind or len(_behind) < MOST_BEHIND:
                _behind[queue] = max(_behind.get(queue, 0), message.created or 0)
    try:
        new_plan = replanned(message, zones)
    except InvalidArgument:  # these data do not have its zone, and so say nothing of it
        return None
    return None if new_plan is None or new_plan.due <= now else new_plan


def take_behind() -> dict[str, int]:
    """Return the queues in which claims have shown messages planned by smaller data; forget them.

    There may be others that are due earlier by the data of this process. With each queue comes the
    time at which the latest of those claimed was first put, in Unix milliseconds.
    """
    with _behind_lock:
        queues = _behind.copy()
        _behind.clear()
    return queues


def postponing(
    queue: str, claimed: Sequence[tuple[Message, Lease, Replanned]], now: int
) -> list[Command]:
    """Return the commands that let claimed messages with local dates wait.

    First they are given back, not before they are due; then they get their new rules, and what the
    delay has taken of the time until they expire. If a process dies between the two, they still
    wait.

    Args:
        queue: of the messages.
        claimed: each with its lease, and what becomes of it.
        now: when they were claimed.
    """
    if not claimed:
        return []
    leases: defaultdict[int, list[Lease]] = defaultdict(list)
    for _message, lease, new_plan in claimed:
        leases[new_plan.due].append(lease)
    releases = [
        RetryCommand(queue, group, due - now, release=True) for due, group in leases.items()
    ]
    return [
        *releases,
        moving(queue, [(message, new_plan) for message, _lease, new_plan in claimed]),
    ]


def moving(queue: str, moved: Sequence[tuple[Message, Replanned]]) -> Edit:
    """Return the command that gives messages their new times, each unless it has changed.

    Runs keep their due times: a version does not cover these.
    """
    return Edit(
        queue,
        [message.id for message, _plan in moved],
        versions=[message.version for message, _plan in moved],
        times=[
            NewTime(run=new_plan.run) if message.repeats else NewTime(new_plan.due, new_plan.rule)
            for message, new_plan in moved
        ],
    )
