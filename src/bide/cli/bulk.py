"""Change many messages: ask first, only count, or let `bide undo` take it back."""

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.errors import usage_error
from bide.cli.message_output import print_messages
from bide.cli.output import DONE, NOTHING, Bar, Output, plural, warn
from bide.cli.store import Store
from bide.lane.steps import run_steps
from bide.model.commands import Cancel, Purge
from bide.model.message import Message, State
from bide.model.replies import Affected
from bide.model.undoing import Bulk, Undo
from bide.queue.command_builder import CommandBuilder
from bide.queue.undoing import bulk_of, check_undo, steps_of, whole

SHOWN = 5
"""How many messages a dry run shows."""


def change_many(
    store: Store, out: Output, queue: str, verb: str, run: Callable[[], int], bulk: Bulk | None, *,
    dry_run: bool, some: Callable[[], Iterable[Message]], what: str = "message",
    where: str = "",
) -> bool:  # fmt: skip
    """Change messages, and print how many; return whether any was changed, or would be.

    Args:
        store: the store.
        out: where to print.
        queue: its name.
        verb: what was done: "cancelled", "rescheduled", "purged" or "revived".
        run: changes them, or in a dry run counts them; returns how many.
        bulk: the change if it can be taken back, in place of `run`.
        dry_run: whether `run` only counts.
        some: returns the first of the messages, which a dry run shows to people.
        what: of which things.
        where: what to say after these.
    """
    check_undo(bulk is not None, True, dry_run, None)
    count = run() if bulk is None else _undoably(store, queue, verb, bulk)
    if not count:
        store.must_have(queue)
    facts: dict[str, Any] = {verb: count}
    if bulk is not None and count:
        facts["undo"] = bulk.undo
    mark = DONE if count and not dry_run else NOTHING
    told = f"{plural(count, what)}{where} {'would be ' * dry_run}{verb}"
    out.report(facts, mark, told, would=[verb] if dry_run else None)
    if out.terminal and "undo" in facts:
        told = (
            f"to take it back, within {option.MINUTES} minutes: bide undo {queue} {facts['undo']}"
        )
        out.text((told, "dim"))
    if out.terminal and dry_run and (first := list(islice(some(), SHOWN))):
        print_messages(out, first)
    return count > 0


def _undoably(store: Store, queue: str, verb: str, bulk: Bulk) -> int:
    """Change messages so that it can be taken back, also what was done before an error."""
    try:
        with Bar(f"{queue}: {verb}") as bar:

            def ask(part: Bulk) -> Any:
                reply = execute(store, part)
                bar.advance(reply.count)
                return reply

            return run_steps(whole(msgspec.structs.replace(bulk, actor=store.actor)), ask)
    except BaseException as error:
        end = "interrupted" if isinstance(error, KeyboardInterrupt) else "it failed"
        back = f"bide undo {queue} {bulk.undo}"
        warn(f"{end}; what was {verb} before can be taken back: {back}")
        raise


def execute(store: Store, command: Bulk | Undo) -> Any:
    """Execute a part of a bulk change, or of taking it back."""
    return store.run(steps_of(command, takes_back=store.lane.capabilities.takes_back))


def repeat(store: Store, command: Cancel | Purge, doing: str, total: int | None = None) -> int:
    """Repeat a command by rule, with a progress bar, until it finds no more; return how many."""
    count, more = 0, True
    with Bar(doing, total) as bar:
        while more:
            reply = store.ask(Affected, command)
            count, more = count + reply.count, reply.more
            bar.advance(reply.count)
    return count


def purge_state(
    store: Store, out: Output, queue: str, state: State, before: float | None, *, dry_run: bool,
    undoable: bool, yes: bool,
) -> None:  # fmt: skip
    """Delete the messages of a state; ask first, unless it can be taken back."""
    orders = store.existing(queue)
    command = CommandBuilder(queue).purge(state, before)
    total: int | None = None
    if before is None and state not in ("acked", "expired"):  # these are only counted together
        total = getattr(orders.counts().sizes, state)
    if not (yes or undoable or dry_run):
        many = f"all {state} messages" if total is None else plural(total, f"{state} message")
        span = " from before that time" if before is not None else ""
        confirm(f"Delete {many} of {queue}{span} permanently?", total)

    def run() -> int:
        if dry_run:
            return orders.purge(state=state, before=before, dry_run=True)
        return repeat(store, command, f"purging {queue}", total)

    def some() -> Iterable[Message]:
        limit = command.before
        return (
            one for one in orders.scan(state)
            if limit is None or (one.due if one.ended is None else one.ended) < limit
        )  # fmt: skip

    change_many(
        store, out, queue, "purged", run, bulk_of(command) if undoable else None, dry_run=dry_run,
        some=some, what=f"{state} message",
    )  # fmt: skip


def confirm(question: str, count: int | None) -> None:
    """Ask on a terminal, unless there is nothing to delete; elsewhere `--yes` is needed."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage_error("purge deletes messages permanently; confirm with --yes")
    if count != 0 and not click.confirm(question, err=True):
        click.get_current_context().exit(1)
