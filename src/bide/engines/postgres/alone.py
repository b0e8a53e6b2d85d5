"""A batch of which one message is locked in an open transaction of somebody else."""

import time
from collections.abc import Callable, Sequence

from bide.engines.port import PartlyDone
from bide.model.commands import Command
from bide.model.errors import BideError, StoreBusy, StoreError
from bide.model.replies import Reply

PATIENCE = 1.0
"""Seconds that the commands of a batch may wait for locks one after the other: all callers of this
process wait meanwhile."""


def one_by_one(
    execute: Callable[[Sequence[Command], int | None], list[Reply]],
    commands: Sequence[Command],
    now: int | None,
) -> PartlyDone:
    """Carry out commands alone, so that only who names the message is told that it is locked.

    Args:
        execute: carries out a batch.
        commands: together they had to wait for a lock for too long.
        now: Unix milliseconds to go by; `None`: the server's clock.
    """
    outcomes: list[Reply | BideError] = []
    until = time.monotonic() + PATIENCE
    for command in commands:
        if time.monotonic() >= until:
            outcomes.append(
                StoreBusy(
                    "commands before this one have waited for messages that are being changed in "
                    "open transactions of somebody else; this one was not carried out. Try again"
                )
            )
            continue
        try:
            outcomes += execute([command], now)
        except StoreError as error:
            outcomes.append(error)
    return PartlyDone(outcomes)
