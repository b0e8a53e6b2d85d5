"""`bide dead` and `bide revive`: the dead letters."""

from collections.abc import Iterable
from itertools import islice

import click

from bide.cli.control import confirm, confirmed_purge
from bide.cli.dead_filter import DeadFilter, all_option, dead_filter_options
from bide.cli.errors import usage_error, warn
from bide.cli.groups import Group
from bide.cli.messages import as_json, print_outcomes, print_sheet
from bide.cli.options import complete_queue, flag, on_store, queue_argument, time_option
from bide.cli.output import DONE, NOTHING, Output, first_line, plural
from bide.cli.progress import Bar
from bide.cli.read import SCREEN, limit_option
from bide.cli.store import Store
from bide.cli.tables import ID, TEXT, Cell, Column
from bide.cli.times import iso, local, now_ms, relative
from bide.model.commands import Purge
from bide.model.message import Message
from bide.model.replies import Outcomes
from bide.queue.answers import in_parts
from bide.queue.sync import Queue

__all__ = ["dead", "revive"]

LETTER = "dead letter"

OTHER_WORDS = {
    "delete": "purge", "remove": "purge", "rm": "purge", "get": "show", "ls": "list",
    "requeue": "revive", "retry": "revive",
}  # fmt: skip
"""The names that other tools use for these commands."""

dry_run_option = flag("--dry-run", help="Only count the dead letters.")


class _DeadGroup(Group):
    """Takes `bide dead QUEUE` for `bide dead list QUEUE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and args[0] in OTHER_WORDS and not args[1].startswith("-"):
            meant = OTHER_WORDS[args[0]]
            raise click.UsageError(
                f"bide dead has no command {args[0]!r}; did you mean {meant!r}? (For dead letters "
                f"of a queue {args[0]!r} write: bide dead list {args[0]})",
                ctx,
            )
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DeadGroup, invoke_without_command=True)
@click.pass_context
def dead(ctx: click.Context) -> None:
    """List, show, revive or purge dead letters.

    A message becomes a dead letter when its attempts are used up, or when it is buried.
    `bide dead QUEUE` lists them.

    \b
    Example:
      bide dead list
      bide dead orders
      bide dead show orders order-42
      bide dead revive orders order-42
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@dead.command("list")
@click.argument("queue", required=False, shell_complete=complete_queue)
@limit_option
@on_store
@dead_filter_options
def list_(
    store: Store, out: Output, queue: str | None, limit: int | None, letters: DeadFilter
) -> None:
    """List the dead letters of a queue, oldest first; without QUEUE, those of each queue.

    In a pipe, each line is: id, time of death, attempts, the last error. Without QUEUE,
    the name of the queue comes first.

    \b
    Example:
      bide dead list
      bide dead list orders
      bide dead list orders --error ConnectionError --after 2026-11-01T00:00Z
    """  # fmt: skip
    named = [] if queue is None else [store.existing(queue)]
    queues = named or [store.queue(name) for name in store.names(own=True)]
    found = (letter for one in queues for letter in letters.of(one))
    with_queue = queue is None
    columns = (
        Column("id", least=ID), *[Column("queue")] * with_queue, Column("died", falls=3),
        Column("", falls=2, right=True), Column("attempts", falls=1, right=True),
        Column("last error", least=TEXT),
    )  # fmt: skip
    out.items(
        islice(found, limit or (SCREEN if out.terminal else None)), columns,
        facts=as_json,
        line=lambda one: [
            *[one.queue] * with_queue, one.id, iso(one.ended), one.attempt, first_line(one.error),
        ],
        cells=lambda one: _cells(one, with_queue),
        empty=lambda: _none(store, queues, queue, letters),
    )  # fmt: skip
    if limit is None and out.terminal and next(found, None) is not None:
        warn("... there are more: --limit N shows N, a pipe shows all")


def _cells(letter: Message, with_queue: bool) -> list[Cell]:
    now, died = now_ms(), letter.ended or letter.due
    return [
        letter.id, *[letter.queue] * with_queue, local(died, now), (relative(died, now), "dim"),
        str(letter.attempt), (first_line(letter.error), "red"),
    ]  # fmt: skip


def _none(store: Store, queues: list[Queue], queue: str | None, letters: DeadFilter) -> str:
    """Return what to say when none was found: there is none at all, or none that matches."""
    where = f"in {queue or store.shown}"
    total = 0 if letters.everything else sum(one.counts().sizes.dead for one in queues)
    if not total:
        return f"no dead letters {where}"
    return f"none of the {plural(total, LETTER)} {where} is like that"


@dead.command()
@queue_argument
@on_store
@dead_filter_options
def show(store: Store, out: Output, queue: str, letters: DeadFilter) -> bool:
    """Show dead letters with all their failures, by id, error or time.

    The exit code is 1 if one of the ids is not a dead letter, or if none was found.

    \b
    Example:
      bide dead show orders order-42
      bide dead show orders --error ConnectionError
    """
    if letters.everything:
        raise usage_error("show takes ids, --error, --after or --before")
    orders = store.existing(queue)
    shown, missing = 0, False
    for id in letters.ids:
        message = orders.get(id)
        if message is None or message.state != "dead":
            where = "is not there" if message is None else f"is {message.state}"
            warn(f"{id} is not a dead letter of {queue}: it {where}")
            missing = True
    for message in letters.of(orders):
        _show(out, message)
        shown += 1
    if not shown and not missing:
        warn(_none(store, [orders], queue, letters))
    return shown > 0 and not missing


def _show(out: Output, message: Message) -> None:
    if out.terminal:
        print_sheet(out, message)
    elif out.as_json:
        out.json(as_json(message))
    else:
        for failure in message.failures:
            out.row(
                message.id, iso(failure.moment), failure.attempt, failure.holder, failure.reason
            )


@click.command("revive")
@queue_argument
@dry_run_option
@all_option
@time_option("--delay", "The delay from now until they are due; none by default.", 0)
@on_store
@dead_filter_options
def revive(
    store: Store, out: Output, queue: str, everything: bool, delay: float, dry_run: bool,
    letters: DeadFilter,
) -> bool:  # fmt: skip
    """Return dead letters to the queue; their attempts start again from 0.

    The exit code is 1 if one of them was not revived, or if there was none.

    \b
    Example:
      bide revive orders order-42
      bide dead revive orders order-42      # the same
      bide revive orders --all --delay 5m
      bide revive orders --error ConnectionError --dry-run
    """
    letters.must_choose("revive", everything)
    orders = store.existing(queue)
    if letters.ids and not letters.filtered and not dry_run:
        return print_outcomes(out, orders.revive(letters.ids, delay=delay), "revived")
    chosen = _ids(letters.of(orders))
    if dry_run:
        return _would(out, queue, len(chosen), "revived")
    revived = 0
    with Bar(f"reviving in {queue}", len(chosen)) as bar:
        for part in in_parts(chosen):
            outcomes = orders.revive(part, delay=delay)
            revived += sum(outcome.done for outcome in outcomes)
            bar.advance(len(outcomes))
    return _done(out, revived, "revived", f" of {queue}")


dead.add_command(revive)


@dead.command()
@queue_argument
@all_option
@dry_run_option
@flag("-y", "--yes", help="Do not ask.")
@on_store
@dead_filter_options
def purge(
    store: Store, out: Output, queue: str, everything: bool, dry_run: bool, yes: bool,
    letters: DeadFilter,
) -> bool:  # fmt: skip
    """Delete dead letters permanently.

    Asks first on a terminal; elsewhere it needs --yes. The exit code is 1 if ids, --error or
    --after find none.

    \b
    Example:
      bide dead purge orders --before 2026-11-01T00:00Z --yes
      bide dead purge orders --error ValueError --dry-run
      bide dead purge orders order-42 --yes
      bide dead purge orders --all --yes
    """
    letters.must_choose("purge", everything)
    if letters.by_time_alone and not dry_run:
        confirmed_purge(store, out, queue, "dead", letters.before, yes)
        return True
    chosen = _ids(letters.of(store.existing(queue)))
    if dry_run:
        return _would(out, queue, len(chosen), "purged")
    confirm(f"Delete {plural(len(chosen), LETTER)} of {queue} permanently?", yes)
    count = 0
    with Bar(f"purging {queue}", len(chosen)) as bar:
        for part in in_parts(chosen):
            reply = store.ask(Outcomes, Purge(queue, "dead", ids=list(part)))
            count += sum(outcome.done for outcome in reply.outcomes)
            bar.advance(len(part))
    return _done(out, count, "purged", "")


def _ids(letters: Iterable[Message]) -> list[str]:
    """Return ids, read before any change: a letter that is revived and dies again counts once."""
    return [letter.id for letter in letters]


def _done(out: Output, count: int, verb: str, whose: str) -> bool:
    mark = DONE if count else NOTHING
    out.report({verb: count}, mark, f"{plural(count, LETTER)}{whose} {verb}")
    return count > 0


def _would(out: Output, queue: str, count: int, verb: str) -> bool:
    what = f"{plural(count, LETTER)} of {queue} would be {verb}"
    out.report({verb: count}, NOTHING, what, would={verb: f"would-{verb[:-1]}"})
    return count > 0
