"""`bide revive`: return dead letters to the queue."""

from typing import Any

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.cli.work.dead_letters import (
    DeadFilter,
    all_option,
    change_letters,
    dry_run_option,
    filter_options,
)


@on_store(option.queue, dry_run_option, all_option, option.undo, name="revive")
@option.time("--delay", "The delay from now until they are due; none by default.", 0)
@filter_options
def revive(
    store: CommandStore,
    out: Output,
    queue: str,
    everything: bool,
    delay: float,
    dry_run: bool,
    undoable: bool,
    **chosen: Any,
) -> bool:
    """Return dead letters to the queue.

    Their attempts start again from 0. The exit code is 1 if one of them was not revived, or if
    there was none.

    \b
    Example:
      bide revive orders order-42
      bide dead revive orders order-42      # the same
      bide revive orders --all --delay 5m
      bide revive orders --error ConnectionError --dry-run
      bide revive orders --all --undo
    """
    letters = DeadFilter(**chosen)
    letters.must_choose("revive", everything)
    orders = store.existing(queue)
    if letters.ids and letters == DeadFilter(letters.ids) and not (dry_run or undoable):
        return print_outcomes(store, out, queue, orders.revive(letters.ids, delay=delay), "revived")
    return change_letters(
        store,
        out,
        orders,
        letters,
        "revived",
        lambda ids: sum(map(bool, orders.revive(ids, delay=delay))),
        lambda ids: orders.revive(ids, delay=delay, undo=True),
        dry_run=dry_run,
        undoable=undoable,
    )
