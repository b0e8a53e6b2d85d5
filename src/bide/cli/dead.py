"""`bide dead` and `bide revive`: the dead letters."""

from itertools import islice

import click

from bide.cli.exits import warn
from bide.cli.families import Family
from bide.cli.letters import Letters, all_option, letters_options
from bide.cli.messages import as_json, print_messages, print_outcomes, print_sheet
from bide.cli.moments import iso, local, now_ms, relative
from bide.cli.options import DURATION, complete_queue, on_store, queue_argument
from bide.cli.output import Output, printable
from bide.cli.progress import Bar
from bide.cli.steer import confirm, confirmed_purge
from bide.cli.store import Store
from bide.cli.tables import ID, TEXT, Column, print_table
from bide.model.commands import Purge
from bide.model.message import Message
from bide.model.replies import Outcomes
from bide.queue.answers import in_parts
from bide.queue.sync import Queue

__all__ = ["dead", "revive"]

SCREEN = 100


OTHER_WORDS = {
    "delete": "purge", "remove": "purge", "rm": "purge", "get": "show", "ls": "list",
    "requeue": "revive", "retry": "revive",
}  # fmt: skip
"""What others call these commands."""


class _Group(Family):
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


@click.group(cls=_Group, invoke_without_command=True)
@click.pass_context
def dead(ctx: click.Context) -> None:
    """List, show, revive or purge dead letters.

    A message becomes one when its attempts are used up, or when it is buried. `bide dead QUEUE`
    lists them.

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
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"How many at most; on a terminal {SCREEN}, in a pipe all.",
)
@on_store
@letters_options
def list_(
    store: Store, out: Output, queue: str | None, limit: int | None, letters: Letters
) -> None:
    """List the dead letters of a queue, oldest first; without QUEUE, those of each queue.

    In a pipe a line is: id, when it died, attempts, the last error. Without QUEUE the queue stands
    before them.

    \b
    Example:
      bide dead list
      bide dead list orders
      bide dead list orders --error ConnectionError --after 2026-11-01T00:00Z
    """  # fmt: skip
    named = [] if queue is None else [store.existing(queue)]
    queues = named or [store.queue(name) for name in store.names(own=True)]
    found = (letter for one in queues for letter in letters.of(one))
    if out.as_json:
        print_messages(out, islice(found, limit))
    elif not out.terminal:
        for message in islice(found, limit):
            whose = [message.queue] if queue is None else []
            died = iso(message.ended)
            out.row(*whose, message.id, died, message.attempt, _first_line(message))
    elif listed := list(islice(found, limit or SCREEN)):
        _table(out, listed, whose=queue is None)
        if limit is None and next(found, None) is not None:
            warn("... and more: --limit N shows N, a pipe shows all")
    else:
        out.text((_none(store, queues, queue, letters), "dim"))


def _none(store: Store, queues: list[Queue], queue: str | None, letters: Letters) -> str:
    """Return what to say where none was found: that there is none, or none like these."""
    where = f"in {queue or store.shown}"
    total = 0 if letters.everything else sum(one.counts().sizes.dead for one in queues)
    if not total:
        return f"no dead letters {where}"
    return f"none of the {_many(total)} {where} is like that"


def _table(out: Output, listed: list[Message], *, whose: bool) -> None:
    from rich.text import Text

    now = now_ms()
    columns = (
        Column("id", least=ID), *[Column("queue")] * whose, Column("died", falls=3),
        Column("", falls=2, right=True), Column("attempts", falls=1, right=True),
        Column("last error", least=TEXT),
    )  # fmt: skip
    rows = []
    for message in listed:
        died = message.ended or message.due
        queue = [Text(message.queue)] * whose
        away = Text(relative(died, now), "dim")
        attempts = Text(str(message.attempt))
        error = Text(_first_line(message), "red")
        rows.append([Text(message.id), *queue, Text(local(died, now)), away, attempts, error])
    print_table(out, columns, rows)


def _first_line(message: Message) -> str:
    lines = (message.error or "").splitlines()
    return printable(lines[0]) if lines else ""


@dead.command()
@queue_argument
@on_store
@letters_options
def show(store: Store, out: Output, queue: str, letters: Letters) -> bool:
    """Show dead letters with all their failures, by id or by what they have in common.

    Exit code 1 when one of the ids is of no dead letter, or when none was found.

    \b
    Example:
      bide dead show orders order-42
      bide dead show orders --error ConnectionError
    """
    if letters.everything:
        raise click.UsageError(
            "show takes ids, --error, --after or --before", click.get_current_context()
        )
    orders = store.existing(queue)
    shown, missing = 0, False
    for id in letters.ids:
        message = orders.get(id)
        if message is None or message.state != "dead":
            where = "is not there" if message is None else f"is {message.state}"
            warn(f"{id} is no dead letter of {queue}: it {where}")
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
            reason = printable(failure.reason)
            out.row(message.id, iso(failure.moment), failure.attempt, failure.holder, reason)


@letters_options
def _revive(
    store: Store, out: Output, queue: str, everything: bool, delay: float, dry_run: bool,
    letters: Letters,
) -> bool:  # fmt: skip
    letters.must_choose("revive", everything)
    orders = store.existing(queue)
    if letters.ids and not letters.filtered and not dry_run:
        return print_outcomes(out, orders.revive(letters.ids, delay=delay), "revived")
    # Read before it is changed: what is revived and dies again is not revived twice.
    chosen = [message.id for message in letters.of(orders)]
    if dry_run:
        return _would(out, queue, len(chosen), "revived")
    revived = 0
    with Bar(f"reviving in {queue}", len(chosen)) as bar:
        for part in in_parts(chosen):
            outcomes = orders.revive(part, delay=delay)
            revived += sum(outcome.done for outcome in outcomes)
            bar.advance(len(outcomes))
    what = f"{_many(revived)} of {queue} revived"
    out.report({"revived": revived}, ("✓ ", "green") if revived else ("= ", "dim"), what)
    return revived > 0


def _would(out: Output, queue: str, count: int, verb: str) -> bool:
    what = f"{_many(count)} of {queue} would be {verb}"
    out.report({verb: count}, ("= ", "dim"), what, would={verb: f"would-{verb[:-1]}"})
    return count > 0


def _many(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


_REVIVE_HELP = """Have dead letters delivered again, with all their attempts before them.

Exit code 1 when one of them was not revived, or when there was none.

\b
Example:
  bide revive orders order-42
  bide dead revive orders order-42      # the same
  bide revive orders --all --delay 5m
  bide revive orders --error ConnectionError --dry-run
"""


def _revive_command() -> click.Command:
    run = on_store(_revive)
    options = (
        click.option("--delay", type=DURATION, default=0, metavar="TIME",
                     help="How long from now until they are due; at once by default."),
        all_option,
        click.option("--dry-run", is_flag=True, help="Only count them."),
        queue_argument,
    )  # fmt: skip
    for option in options:
        run = option(run)
    return click.command("revive", help=_REVIVE_HELP)(run)


revive = _revive_command()
dead.add_command(revive)


@dead.command()
@queue_argument
@all_option
@click.option("--dry-run", is_flag=True, help="Only count them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@on_store
@letters_options
def purge(
    store: Store, out: Output, queue: str, everything: bool, dry_run: bool, yes: bool,
    letters: Letters,
) -> bool:  # fmt: skip
    """Delete dead letters for good; asks first on a terminal, elsewhere it wants --yes.

    Exit code 1 when ids, --error or --after find none.

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
    chosen = [message.id for message in letters.of(store.existing(queue))]
    if dry_run:
        return _would(out, queue, len(chosen), "purged")
    confirm(f"Delete {_many(len(chosen))} of {queue} for good?", yes)
    count = 0
    with Bar(f"purging {queue}", len(chosen)) as bar:
        for part in in_parts(chosen):
            reply = store.ask(Outcomes, Purge(queue, "dead", ids=list(part)))
            count += sum(outcome.done for outcome in reply.outcomes)
            bar.advance(len(part))
    out.report({"purged": count}, ("✓ ", "green") if count else ("= ", "dim"),
               f"{_many(count)} purged")  # fmt: skip
    return count > 0
