"""`bide result`: print the result of a message."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Output, escape, warn
from bide.cli.store import CommandStore
from bide.model.ended import NotAcked
from bide.model.errors import NotEnded, NotRemembered


@on_store(option.queue, option.id)
@option.time("--wait", "How long to wait for the end of the message; by default not at all.")
def result(store: CommandStore, out: Output, queue: str, id: str, wait: float | None) -> bool:
    """Print the result of a message: what its handler returned, as JSON.

    The queue remembers it for as long as `bide set --result-ttl` says. The exit code is 1 if there
    is none: the message has not ended, it died, expired, was cancelled, or nothing is remembered.

    \b
    Example:
      bide result orders order-42 --wait 30s
    """
    try:
        value = store.existing(queue).result(id, wait=wait)
    except (NotEnded, NotAcked, NotRemembered) as error:
        warn(escape(str(error)))
        return False
    out.json(value)
    return True
