"""`bide resume`: let messages be claimed again."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Output
from bide.cli.store import CommandStore


@on_store(option.queue)
def resume(store: CommandStore, out: Output, queue: str) -> None:
    """Let messages be claimed again.

    The exit code is 1 if the queue does not exist.

    \b
    Example:
      bide resume orders
    """
    store.existing(queue).resume()
    out.report({"queue": queue, "paused": False}, ("▶ ", "green"), f"{queue} is resumed")
