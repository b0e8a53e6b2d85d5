"""`bide peek`: show the messages that are delivered next."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_messages
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.model.limits import MAX_PAGE


@on_store(option.queue)
@option.count("-n", "--count", most=MAX_PAGE, default=10, help="The maximum number.")
def peek(store: CommandStore, out: Output, queue: str, count: int) -> None:
    """Show the messages that are delivered next.

    Ready ones come first, then delayed ones. In a pipe, each line is: id, state, due, priority,
    attempt, group, body.

    \b
    Example:
      bide peek orders -n 20
    """
    print_messages(
        out, store.existing(queue).peek(count), f"no message is ready or delayed in {queue}"
    )
