"""Commands from an outbox: each row is executed once."""

from collections.abc import Callable, Container, Sequence
from typing import TypeVar

import msgspec

from bide.model.commands import Cancel, Origin, Put, Reschedule
from bide.model.replies import Outcome, Outcomes, Reply

Forwarded = Put | Cancel | Reschedule
"""Commands that an outbox holds."""

C = TypeVar("C", bound=Forwarded)


def executed_once(
    command: C, origin: Origin, known: Container[str], execute: Callable[[C], Reply]
) -> tuple[Outcomes, list[str]]:
    """Execute a command for those of its messages whose rows the store does not remember.

    Args:
        command: it names messages one by one.
        origin: of the command.
        known: the rows that the store remembers.
        execute: executes a command.

    Returns:
        The reply for all messages, and the rows to remember from now on.
    """
    unknown = [number for number, row in enumerate(origin.rows) if row not in known]
    outcomes = [Outcome(id, False, "forwarded") for id in _ids(command)]
    if not unknown:
        return Outcomes(outcomes), []
    reply = execute(_only(command, unknown))
    assert isinstance(reply, Outcomes)
    for number, outcome in zip(unknown, reply.outcomes, strict=True):
        outcomes[number] = outcome
    done = [origin.rows[number] for number in unknown if outcomes[number]]
    return Outcomes(outcomes, reply.wake), done


def _ids(command: Forwarded) -> Sequence[str]:
    return [item.id for item in command.items] if isinstance(command, Put) else command.ids


def _only(command: C, numbers: Sequence[int]) -> C:
    """Return a command for some of its messages, without its origin."""
    fields = ("items",) if isinstance(command, Put) else ("ids", "versions")
    some = {}
    for name in fields:
        values = getattr(command, name)
        some[name] = [values[number] for number in numbers] if values else values
    return msgspec.structs.replace(command, **some, origin=None)
