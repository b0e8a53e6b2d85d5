"""`bide reopen-group`: open a closed group again."""

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import DONE, NOTHING, Output
from bide.cli.store import CommandStore


@on_store(option.queue, click.argument("group"))
def reopen_group(store: CommandStore, out: Output, queue: str, group: str) -> bool:
    """Open a closed group again.

    What was cancelled or refused does not come back. The exit code is 1 if it was not closed.

    \b
    Example:
      bide reopen-group orders order:42
    """
    was_closed = store.queue(queue).reopen_group(group)
    text = f"{group} is open again" if was_closed else f"{group} was not closed"
    out.report({"group": group, "reopened": was_closed}, DONE if was_closed else NOTHING, text)
    return was_closed
