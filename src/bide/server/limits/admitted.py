"""Commands that the quotas admit, and what is to be undone when they have been executed."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from bide.model import commands as cmd
from bide.model.message import REASON_LENGTH, Item

SHORT_REASON = 200
"""The maximum length of a reason in a namespace without room, in characters."""

HISTORY_RECORD = 256
"""About the number of bytes of a record in a history, without result and reasons."""


class Admitted(ExitStack):
    """Commands that may be executed. Use it as a context manager around their execution.

    Its callbacks are called when they have been executed, or failed.

    Args:
        commands: to be executed: those that were asked for, perhaps without results and with
            shorter reasons.
    """

    def __init__(self, commands: Sequence[Any]) -> None:
        super().__init__()
        self.commands = commands


def bytes_left_by(command: Any) -> int:
    """Return how many bytes of results and reasons a command leaves in the store."""
    if isinstance(command, (cmd.Ack, cmd.Renew)):
        return HISTORY_RECORD * command.weight + sum(map(len, filter(None, command.results)))
    if isinstance(command, cmd.RetryCommand):
        records_failure = bool(command.reason) or not command.release
    else:
        records_failure = isinstance(command, cmd.BuryCommand)
    if not records_failure:
        return 0
    size: int = (HISTORY_RECORD + min(len(command.reason), REASON_LENGTH)) * command.weight
    return size


def dead_letters_of(commands: Sequence[cmd.Command]) -> list[Item]:
    """Return the dead letters that are put for runs which a claim has ended."""
    return [item for command in commands if isinstance(command, cmd.Put) for item in command.items]


def with_short_reasons(command: cmd.Command) -> cmd.Command:
    """Return a command that ends runs as this one, and leaves as little as possible."""
    if not isinstance(command, cmd.Put):
        shortened_command: cmd.Command = shortened(command)
        return shortened_command
    items = [
        msgspec.structs.replace(
            item,
            failures=tuple(
                msgspec.structs.replace(failure, reason=_short(failure.reason))
                for failure in item.failures
            ),
        )
        for item in command.items
    ]
    return msgspec.structs.replace(command, items=items)


def _short(reason: str) -> str:
    """Return the first line of a reason, cut."""
    return next(iter(reason.splitlines()), "")[:SHORT_REASON]


def shortened(command: Any) -> Any:
    """Return a command that settles messages as this one, and leaves as little as possible.

    A namespace without room must still be able to settle what its workers hold.
    """
    if isinstance(command, (cmd.Ack, cmd.Renew)):
        return msgspec.structs.replace(command, results=[])
    if isinstance(command, (cmd.BuryCommand, cmd.RetryCommand, cmd.Release)):
        return msgspec.structs.replace(command, reason=_short(command.reason))
    return command
