"""`bide resume`: let messages be claimed again, or let one that is held repeat again."""

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.rules import of_repeating
from bide.cli.store import CommandStore


@on_store(option.queue, click.argument("id", required=False))
def resume(store: CommandStore, out: Output, queue: str, id: str | None) -> bool:
    """Resume a paused queue, or a message that is held.

    Without ID, it ends the pause of the queue; the exit code is 1 if the queue does not exist. With
    the ID of a message that repeats and is held, its next run is the first one from now on. Then,
    in a pipe, the line is: id, "resumed" or "no", state, why not; and the exit code is 1 if it was
    not resumed: a worker holds it, or it does not exist.

    \b
    Example:
      bide resume orders
      bide resume mail ann/weekly
    """
    if id is not None:
        with of_repeating(queue, id):
            outcome = store.queue(queue).resume(id)
        return print_outcomes(store, out, queue, [outcome], "resumed", as_seen=True)
    store.existing(queue).resume()
    out.report({"queue": queue, "paused": False}, ("▶ ", "green"), f"{queue} is resumed")
    return True
