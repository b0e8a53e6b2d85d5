"""`bide close-group`: refuse puts into a group, and cancel what waits in it."""

import click

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.output import DONE, Output, plural
from bide.cli.store import CommandStore
from bide.cli.times import local


@on_any_store(option.queue, click.argument("group"))
@option.time("--keep", "How long it stays closed.", "1d")
@option.flag("--running", help="Also ask the workers of running messages to stop.")
def close_group(
    store: CommandStore, out: Output, queue: str, group: str, keep: float, running: bool
) -> None:
    """Refuse puts into a group, and cancel what waits in it.

    What a retry, a revive or an edit would return to the group is cancelled, too. Repeating the
    command is safe; a group that is closed for longer stays so. The queue need not exist yet. A
    line on stderr says so: it may be a typo.

    In a pipe the lines are: group, its name; until, Unix milliseconds; cancelled, number; stopping,
    number.

    \b
    Example:
      bide close-group orders order:42
      bide close-group orders order:42 --keep 7d --running
    """
    with store.telling_new(queue):
        count = store.queue(queue).close_group(group, keep=keep, running=running)
    until = round(count.until.timestamp() * 1000)
    facts = {"group": group, "until": until, "cancelled": int(count), "stopping": count.stopping}
    stopping = f", {count.stopping:,} stopping" if count.stopping else ""
    out.report(
        facts,
        DONE,
        f"{group} is closed until {local(until)}: {plural(int(count), 'message')} cancelled"
        + stopping,
    )
