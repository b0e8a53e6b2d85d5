"""`bide delete`: delete an empty queue, with its settings and counters."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import DONE, Output
from bide.cli.store import CommandStore


@on_store(option.queue)
def delete(store: CommandStore, out: Output, queue: str) -> None:
    """Delete an empty queue, with its settings and counters.

    The exit code is 1 if there is no such queue, or if it holds messages: purge these first. A
    later put makes the queue again.

    \b
    Example:
      bide delete odrers
    """
    store.existing(queue).delete()
    out.report({"queue": queue, "deleted": True}, DONE, f"{queue} deleted")
