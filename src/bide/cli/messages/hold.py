"""`bide hold`: let no run of a message be due until it is resumed."""

import shlex

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.rules import of_repeating
from bide.cli.store import CommandStore


@on_store(option.queue, option.id)
def hold(store: CommandStore, out: Output, queue: str, id: str) -> bool:
    """Stop the runs of a message that repeats until `bide resume`.

    The message stays as it is. In a pipe, the line is: id, "held" or "no", state, why not. The exit
    code is 1 if it is not held: a worker holds a run of it, or it does not exist.

    \b
    Example:
      bide hold mail ann/weekly
    """
    with of_repeating(queue, id):
        outcome = store.queue(queue).hold(id)
    then = f"no run is due until 'bide resume {queue} {shlex.quote(id)}'"
    return print_outcomes(store, out, queue, [outcome], "held", as_seen=True, then=then)
