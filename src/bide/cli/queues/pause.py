"""`bide pause`: stop claims from a queue, until it is resumed."""

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.output import Output, warn
from bide.cli.store import CommandStore


@on_any_store(option.queue)
def pause(store: CommandStore, out: Output, queue: str) -> None:
    """Stop claims from a queue, until it is resumed.

    That holds for every process. Puts continue. A queue that does not exist yet can be paused. A
    line on stderr says so: it may be a typo.

    \b
    Example:
      bide pause orders
    """
    existed = store.has(queue)
    store.queue(queue).pause()
    if not existed:
        warn(f"{queue} is new: there was no such queue in {store.shown}")
    out.report({"queue": queue, "paused": True}, ("⏸ ", "yellow"), f"{queue} is paused")
