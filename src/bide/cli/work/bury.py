"""`bide bury`: make a claimed message a dead letter."""

from collections.abc import Sequence

from bide.cli import option
from bide.cli.work.settling import on_leases
from bide.model.commands import Command, Lease
from bide.queue.command_builder import CommandBuilder


@on_leases("buried", option.text("--reason", "TEXT", "Why; stored with the message.", ""))
def bury(builder: CommandBuilder, leases: Sequence[Lease], reason: str) -> Command:
    """Make a claimed message a dead letter.

    \b
    Example:
      bide bury orders order-42 7 --reason "no such customer"
    """
    return builder.bury(leases, reason)
