"""`bide purge`: delete all messages of a state permanently."""

from bide.cli import option
from bide.cli.bulk import purge_state
from bide.cli.command import on_store
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.model.message import State


@on_store(option.queue)
@option.choice(
    "--state",
    ["delayed", "ready", "dead", "acked", "expired"],
    "The state. For acked and expired: forget these messages and their ids.",
    required=True,
)
@option.moment(
    "--before", "Only those that entered the state before then (delayed or ready: due before then)."
)
@option.flag("--dry-run", help="Only count the messages, and show the first ones.")
@option.undo
@option.flag("-y", "--yes", help="Do not ask.")
def purge(
    store: CommandStore,
    out: Output,
    queue: str,
    state: State,
    before: float | None,
    dry_run: bool,
    undoable: bool,
    yes: bool,
) -> None:
    """Delete all messages of a state permanently. Messages that a worker holds stay.

    Asks first on a terminal; elsewhere it needs --yes, unless it can be taken back (--undo). Prints
    how many were deleted ("purged" in a pipe and in JSON).

    Acked and expired messages have left the queue, which remembers their ids for a time. After a
    purge these ids can be put again.

    \b
    Example:
      bide purge orders --state dead --before 2026-11-01T00:00Z
      bide purge orders --state delayed --yes
      bide purge orders --state dead --undo
    """
    purge_state(store, out, queue, state, before, dry_run=dry_run, undoable=undoable, yes=yes)
