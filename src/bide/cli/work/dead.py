"""`bide dead`: list, show, revive or purge dead letters."""

from collections.abc import Sequence
from typing import Any

import click

from bide.cli import option
from bide.cli.bulk import purge_state
from bide.cli.command import on_store
from bide.cli.message_output import as_json, print_messages
from bide.cli.message_sheet import print_sheet
from bide.cli.option import MORE, SCREEN
from bide.cli.output import Output, warn
from bide.cli.program import ListGroup
from bide.cli.store import CommandStore
from bide.cli.times import iso
from bide.cli.work.dead_letters import (
    LETTER,
    DeadFilter,
    all_option,
    change_letters,
    dry_run_option,
    filter_options,
)
from bide.cli.work.revive import revive
from bide.model.commands import Purge
from bide.model.parts import in_parts
from bide.model.replies import Outcomes
from bide.queue.sync import Queue


@click.group(cls=ListGroup)
def dead() -> None:
    """List, show, revive or purge dead letters.

    A message becomes a dead letter when its attempts are used up, or when it is buried.
    `bide dead QUEUE` lists them; `bide dead` lists those of all queues.

    \b
    Example:
      bide dead list
      bide dead orders
      bide dead show orders order-42
      bide dead revive orders order-42
    """


@on_store(option.optional_queue, group=dead, name="list")
@option.limit
@filter_options
def list_(
    store: CommandStore, out: Output, queue: str | None, limit: int | None, **chosen: Any
) -> None:
    """List the dead letters of a queue, oldest first; without QUEUE, those of each queue.

    In a pipe, each line is: id, time of death, attempts, the last error. Without QUEUE,
    the name of the queue comes first.

    \b
    Example:
      bide dead list
      bide dead list orders
      bide dead list orders --error ConnectionError --after 2026-11-01T00:00Z
    """
    letters = DeadFilter(**chosen)
    if queue is None:
        queues = [store.queue(name) for name in store.names(own=True)]
    else:
        queues = [store.existing(queue)]
    print_messages(
        out,
        (letter for opened_queue in queues for letter in letters.of(opened_queue)),
        f"no matching {LETTER}s in {queue or store.shown}",
        pipe="queue id died attempt error" if queue is None else "id died attempt error",
        screen=(
            "id queue died attempts last-error" if queue is None else "id died attempts last-error"
        ),
        most=limit or (SCREEN if out.terminal else None),
        more="" if limit else MORE,
    )


def _name_others(queue: Queue, ids: tuple[str, ...]) -> bool:
    """Name the ids that are no dead letters; return whether there are any."""
    others = [id for id in ids if (message := queue.get(id)) is None or message.state != "dead"]
    for id in others:
        warn(f"{id} is not a dead letter of {queue.name}: see 'bide get {queue.name} {id}'")
    return bool(others)


@on_store(option.queue, group=dead)
@filter_options
def show(store: CommandStore, out: Output, queue: str, **chosen: Any) -> bool:
    """Show dead letters with all their failures: all, or by id, error or time.

    In a pipe, each line is a failure: id, time, attempt, worker, reason. The exit code is 1 if one
    of the ids is not a dead letter, or if none was found.

    \b
    Example:
      bide dead show orders order-42
      bide dead show orders --error ConnectionError
    """
    letters = DeadFilter(**chosen)
    orders = store.existing(queue)
    has_others = _name_others(orders, letters.ids)
    shown_count = 0
    for message in letters.of(orders):
        shown_count += 1
        if out.terminal:
            print_sheet(out, message)
        elif out.as_json:
            out.json(as_json(message))
        else:
            for failure in message.failures:
                moment = iso(failure.moment)
                out.row(message.id, moment, failure.attempt, failure.holder, failure.reason)
    if not shown_count and not has_others:
        warn(f"no matching {LETTER}s in {queue}")
    return shown_count > 0 and not has_others


dead.add_command(revive)


@on_store(option.queue, all_option, dry_run_option, option.undo, group=dead)
@option.flag("-y", "--yes", help="Do not ask.")
@filter_options
def purge(
    store: CommandStore,
    out: Output,
    queue: str,
    everything: bool,
    dry_run: bool,
    undoable: bool,
    yes: bool,
    **chosen: Any,
) -> bool:
    """Delete dead letters permanently.

    Asks first on a terminal; elsewhere it needs --yes, unless it can be taken back (--undo). The
    exit code is 1 if ids, --error or --after find none, or one of the ids is not a dead letter.

    \b
    Example:
      bide dead purge orders --before 2026-11-01T00:00Z --yes
      bide dead purge orders --error ValueError --dry-run
      bide dead purge orders order-42 --yes
      bide dead purge orders --all --yes
    """
    letters = DeadFilter(**chosen)
    letters.must_choose("purge", everything)
    if not dry_run and letters == DeadFilter(before=letters.before):
        purge_state(
            store, out, queue, "dead", letters.before, dry_run=False, undoable=undoable, yes=yes
        )
        return True

    orders = store.existing(queue)

    def command(ids: Sequence[str]) -> Purge:
        return Purge(queue, "dead", ids=list(ids), actor=store.actor)

    def purge(ids: list[str]) -> int:
        replies = (store.ask(Outcomes, command(part)) for part in in_parts(ids))
        return sum(bool(outcome) for reply in replies for outcome in reply.outcomes)

    has_others = _name_others(orders, letters.ids)
    changed = change_letters(
        store,
        out,
        orders,
        letters,
        "purged",
        purge,
        lambda ids: orders._undoable(command(ids), by_id=True),
        dry_run=dry_run,
        undoable=undoable,
        yes=yes,
    )
    return changed and not has_others
