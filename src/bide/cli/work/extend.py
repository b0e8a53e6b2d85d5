"""`bide extend`: extend the lease of a claimed message."""

from collections.abc import Sequence

from bide.cli import option
from bide.cli.work.settling import on_leases
from bide.model.commands import Command, Lease
from bide.queue.command_builder import CommandBuilder


@on_leases("extended", option.time("--lease", "The new length of the lease, from now.", "30s"))
def extend(builder: CommandBuilder, leases: Sequence[Lease], lease: float) -> Command:
    """Extend the lease of a claimed message.

    \b
    Example:
      bide extend orders order-42 7 --lease 5m
    """
    return builder.extend(leases, lease)
