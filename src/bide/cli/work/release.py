"""`bide release`: end the lease of a message that any worker holds."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.store import CommandStore


@on_store(option.queue, option.id)
@option.text("--reason", "TEXT", 'Why; by default "released by" and your name.')
def release(store: CommandStore, out: Output, queue: str, id: str, reason: str | None) -> bool:
    """End the lease of a message that any worker holds.

    Use it when a worker hangs. It counts as a failed attempt: the message is ready again at once,
    or a dead letter if its attempts are used up. The worker can no longer ack it. The exit code is
    1 if no worker held the message.

    \b
    Example:
      bide release orders order-42
      bide release orders order-42 --reason "worker 7 hangs"
    """
    outcome = store.queue(queue).release(id, reason=reason)
    return print_outcomes(store, out, queue, [outcome], "released")
