"""`bide run-now`: let a message that repeats run now, too."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.rules import of_repeating
from bide.cli.store import CommandStore


@on_store(option.queue, option.id)
def run_now(store: CommandStore, out: Output, queue: str, id: str) -> bool:
    """Run a message that repeats now, in addition to its rule.

    Then it repeats as before; one that is held is held again. In a pipe, the line is: id, "run" or
    "no", state, why not. The exit code is 1 if it does not run: a worker holds it already, or it
    does not exist.

    \b
    Example:
      bide run-now mail ann/weekly
    """
    with of_repeating(queue, id):
        outcome = store.queue(queue).run_now(id)
    then = "" if outcome.state == "delayed" else "it is due now"  # its window may be closed
    return print_outcomes(store, out, queue, [outcome], "run", as_seen=True, then=then)
