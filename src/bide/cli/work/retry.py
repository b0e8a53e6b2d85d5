"""`bide retry`: return a claimed message for another attempt."""

from collections.abc import Sequence

from bide.cli import option
from bide.cli.work.settling import on_leases
from bide.model.commands import Command, Lease
from bide.queue.command_builder import CommandBuilder


@on_leases(
    "given back",
    option.time("--delay", "The delay from now; none by default.", 0),
    option.text("--reason", "TEXT", "What went wrong; stored with the message.", ""),
)
def retry(builder: CommandBuilder, leases: Sequence[Lease], delay: float, reason: str) -> Command:
    """Return a claimed message for another attempt.

    After its last attempt, the message becomes a dead letter.

    \b
    Example:
      bide retry orders order-42 7 --delay 1m --reason "the bank is closed"
    """
    return builder.retry(leases, delay, reason)
