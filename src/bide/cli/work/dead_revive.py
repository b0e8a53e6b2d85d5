"""`bide dead` and `bide revive`: the dead letters."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click

from bide.cli import option
from bide.cli.bulk import change_many, confirm, purge_state
from bide.cli.errors import usage_error
from bide.cli.message_output import as_json, print_messages, print_outcomes, print_sheet
from bide.cli.option import MORE, SCREEN
from bide.cli.output import Output, plural, warn
from bide.cli.program import ListGroup
from bide.cli.store import Store, on_store
from bide.cli.times import iso
from bide.model.commands import Purge
from bide.model.message import Message
from bide.model.parts import in_parts
from bide.model.replies import Outcomes
from bide.queue.sync import Queue
from bide.undoing.changes import bulk_of

LETTER = "dead letter"

all_option = option.flag("--all", "everything", help="All dead letters.")
dry_run_option = option.flag("--dry-run", help="Only count the dead letters, and show the first.")


class DeadFilter(NamedTuple):
    """Which dead letters a command selects: all given conditions must hold."""

    ids: tuple[str, ...] = ()
    """Only these; any if empty."""
    error: str | None = None
    """Only those whose last error starts with this, with or without the module of its type."""
    after: float | None = None
    """Only those that died then or later, in Unix seconds."""
    before: float | None = None
    """Only those that died earlier."""

    def must_choose(self, command: str, everything: bool) -> None:
        """Refuse a command that does not say which dead letters it selects.

        Args:
            command: the name of the command.
            everything: whether `--all` was given.

        Raises:
            click.UsageError: nothing was given, or both ids and `--all`.
        """
        nothing = self._replace(error=self.error or None) == DeadFilter()  # "" says nothing
        if (everything and self.ids) or (nothing and not everything):
            raise usage_error(
                f"{command} takes ids, --error, --after and --before, or --all for all dead letters"
            )

    def of(self, queue: Queue) -> Iterator[Message]:
        """Return the dead letters that match, lazily; oldest first, or in the order of the ids."""
        named = map(queue.get, self.ids) if self.ids else queue.dead()
        return (message for message in named if message is not None and self._matches(message))

    def _matches(self, letter: Message) -> bool:
        died = (letter.ended or letter.due) / 1000
        return (
            letter.state == "dead"
            and (self.error is None or _begins(letter.error or "", self.error))
            and (self.after is None or died >= self.after)
            and (self.before is None or died < self.before)
        )


def _begins(error: str, wanted: str) -> bool:
    """Tell whether an error starts with a text, with or without (the first part of) its module."""
    return re.match(rf"(?:[^\s:.]+\.)*{re.escape(wanted)}", error) is not None


filter_options = option.together(
    click.argument(
        "ids",
        nargs=-1,
        metavar="[ID]...",
        callback=lambda ctx, param, ids: tuple(dict.fromkeys(ids)),
    ),
    option.text(
        "--error",
        "TYPE",
        "Only those whose last error starts with this: ValueError, or shop.errors.OutOfStock, "
        "or OutOfStock without its module.",
    ),
    option.moment("--after", "Only those that died since then."),
    option.moment("--before", "Only those that died before then."),
)
"""Take which dead letters the command selects."""


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


@on_store(group=dead, name="list")
@click.argument("queue", required=False, shell_complete=option.complete_queue)
@option.limit
@filter_options
def list_(store: Store, out: Output, queue: str | None, limit: int | None, **chosen: Any) -> None:
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
    names = store.names(own=True) if queue is None else [queue]
    queues = [store.existing(name) if queue else store.queue(name) for name in names]
    print_messages(
        out,
        (letter for origin in queues for letter in letters.of(origin)),
        f"no matching {LETTER}s in {queue or store.shown}",
        pipe="queue " * (queue is None) + "id died attempt error",
        screen=f"id {'queue ' * (queue is None)}died attempts last-error",
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
def show(store: Store, out: Output, queue: str, **chosen: Any) -> bool:
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
    shown, others = 0, _name_others(orders, letters.ids)
    for shown, message in enumerate(letters.of(orders), 1):  # noqa: B007
        if out.terminal:
            print_sheet(out, message)
        elif out.as_json:
            out.json(as_json(message))
        else:
            for failure in message.failures:
                moment = iso(failure.moment)
                out.row(message.id, moment, failure.attempt, failure.holder, failure.reason)
    if not shown and not others:
        warn(f"no matching {LETTER}s in {queue}")
    return shown > 0 and not others


@on_store(option.queue, dry_run_option, all_option, option.undo, name="revive")
@option.time("--delay", "The delay from now until they are due; none by default.", 0)
@filter_options
def revive(
    store: Store,
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
    return _change(
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


dead.add_command(revive)


@on_store(option.queue, all_option, dry_run_option, option.undo, group=dead)
@option.flag("-y", "--yes", help="Do not ask.")
@filter_options
def purge(
    store: Store,
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

    others = _name_others(orders, letters.ids)
    changed = _change(
        store,
        out,
        orders,
        letters,
        "purged",
        purge,
        lambda ids: orders._bulk(bulk_of(command(ids), by_id=True)),
        dry_run=dry_run,
        undoable=undoable,
        yes=yes,
    )
    return changed and not others


def _change(
    store: Store,
    out: Output,
    orders: Queue,
    letters: DeadFilter,
    verb: str,
    change: Callable[[list[str]], int],
    undoably: Callable[[list[str]], int],
    *,
    dry_run: bool,
    undoable: bool,
    yes: bool = True,
) -> bool:
    """Change dead letters; return whether any was changed, or would be."""
    queue = orders.name
    # Read before any change: a letter that is revived and dies again counts once.
    ids = [letter.id for letter in letters.of(orders)]
    if not (dry_run or undoable or yes):
        confirm(f"Delete {plural(len(ids), LETTER)} of {queue} permanently?", len(ids))

    def run(*, dry_run: bool, undo: bool) -> int:
        return len(ids) if dry_run else undoably(ids) if undo else change(ids)

    return change_many(
        store,
        out,
        queue,
        verb,
        run,
        dry_run=dry_run,
        undoable=undoable,
        some=lambda: letters.of(orders),
        what=LETTER,
        where=f" of {queue}",
    )
