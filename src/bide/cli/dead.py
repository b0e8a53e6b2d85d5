"""`bide dead` and `bide revive`: the dead letters."""

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import click

from bide.cli.exits import warn
from bide.cli.messages import as_json, print_messages, print_outcomes, print_sheet, print_table
from bide.cli.moments import iso, local, now_ms, relative
from bide.cli.options import DURATION, MOMENT, on_store, queue_argument
from bide.cli.output import Output, printable
from bide.cli.progress import Bar
from bide.cli.steer import confirmed_purge
from bide.cli.store import Store
from bide.model.message import Message

__all__ = ["dead", "revive"]

SCREEN = 100
Meant = Callable[[Message], bool] | None
"""Tells which dead letters are meant; `None`: all are."""


def _filter_options(function: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """Take which dead letters are meant: `--error`, `--after`, `--before`."""

    @click.option(
        "--error", metavar="TYPE", help="Only those whose last error begins so, as ValueError does."
    )
    @click.option("--after", type=MOMENT, metavar="MOMENT", help="Only those that died since then.")
    @click.option(
        "--before", type=MOMENT, metavar="MOMENT", help="Only those that died before then."
    )
    @functools.wraps(function)
    def run(
        *args: Any, error: str | None, after: float | None, before: float | None, **rest: Any
    ) -> bool | None:
        def meant(letter: Message) -> bool:
            died = (letter.ended or letter.due) / 1000
            return (
                (error is None or (letter.error or "").startswith(error))
                and (after is None or died >= after)
                and (before is None or died < before)
            )

        anything = (error, after, before) == (None, None, None)
        return function(*args, meant=None if anything else meant, **rest)

    return run


class _Group(click.Group):
    """Takes `bide dead QUEUE` for `bide dead list QUEUE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
      bide dead orders
      bide dead show orders order-42
      bide dead revive orders order-42
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@dead.command("list")
@queue_argument
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"How many at most; on a terminal {SCREEN}, in a pipe all.",
)
@on_store
@_filter_options
def list_(store: Store, out: Output, queue: str, limit: int | None, meant: Meant) -> None:
    """List the dead letters, oldest first.

    In a pipe a line is: id, when it died, attempts, the last error.

    \b
    Example:
      bide dead list orders
      bide dead list orders --error ConnectionError --after 2026-11-01T00:00Z
    """  # fmt: skip
    letters = filter(meant, store.standing(queue).dead())
    if out.as_json:
        print_messages(out, islice(letters, limit))
    elif not out.terminal:
        for message in islice(letters, limit):
            out.row(message.id, iso(message.ended), message.attempt, _first_line(message))
    else:
        listed = list(islice(letters, limit or SCREEN))
        _table(out, queue, listed)
        if limit is None and next(letters, None) is not None:
            warn("... and more: --limit N shows N, a pipe shows all")


def _table(out: Output, queue: str, listed: list[Message]) -> None:
    from rich.text import Text

    if not listed:
        out.text((f"no dead letters in {queue}", "dim"))
        return
    now = now_ms()
    names = ("id", "died", "", "attempts", "last error")
    rows = []
    for message in listed:
        died = message.ended or message.due
        away = Text(relative(died, now), "dim")
        attempts = Text(f"{message.attempt}/{message.attempts}")
        error = Text(_first_line(message), "red")
        rows.append([Text(message.id), Text(local(died, now)), away, attempts, error])
    print_table(out, names, rows, right=("", "attempts"))


def _first_line(message: Message) -> str:
    lines = (message.error or "").splitlines()
    return printable(lines[0]) if lines else ""


@dead.command()
@queue_argument
@click.argument("id")
@on_store
def show(store: Store, out: Output, queue: str, id: str) -> bool:
    """Show one dead letter with all its failures.

    Exit code 1 when there is no dead letter of this id.

    \b
    Example:
      bide dead show orders order-42
    """
    message = store.standing(queue).get(id)
    if message is None or message.state != "dead":
        where = "is not there" if message is None else f"is {message.state}"
        warn(f"{id} is no dead letter of {queue}: it {where}")
        return False
    if out.terminal:
        print_sheet(out, message)
    elif out.as_json:
        out.json(as_json(message))
    else:
        for failure in message.failures:
            reason = printable(failure.reason)
            out.row(message.id, iso(failure.moment), failure.attempt, failure.holder, reason)
    return True


@_filter_options
def _revive(
    store: Store, out: Output, queue: str, ids: tuple[str, ...], everything: bool, delay: float,
    meant: Meant,
) -> bool:  # fmt: skip
    if everything == bool(ids):
        raise click.UsageError(
            "revive takes ids, or --all for all dead letters", click.get_current_context()
        )
    if ids and meant is not None:
        raise click.UsageError(
            "--error, --after and --before choose among all dead letters: they go with --all",
            click.get_current_context(),
        )
    orders = store.standing(queue)
    if ids:
        return print_outcomes(out, orders.revive(ids, delay=delay), "revived")
    revived = 0
    with Bar(f"reviving in {queue}", orders.counts().sizes.dead) as bar:
        # Read before it is changed: what is revived and dies again is not revived twice.
        for part in _parts([message.id for message in filter(meant, orders.dead())]):
            outcomes = orders.revive(part, delay=delay)
            revived += sum(outcome.done for outcome in outcomes)
            bar.advance(len(outcomes))
    what = f"{revived:,} dead letter{'' if revived == 1 else 's'} of {queue} revived"
    out.report({"revived": revived}, ("✓ ", "green") if revived else ("= ", "dim"), what)
    return revived > 0


def _parts(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), 1_000):
        yield ids[start : start + 1_000]


_REVIVE_HELP = """Have dead letters delivered again, with all their attempts before them.

Exit code 1 when one of them was not revived, or when there was none.

\b
Example:
  bide revive orders order-42
  bide dead revive orders order-42      # the same
  bide revive orders --all --delay 5m
  bide revive orders --all --error ConnectionError
"""


def _revive_command() -> click.Command:
    run = on_store(_revive)
    options = (
        click.option("--delay", type=DURATION, default=0, metavar="TIME",
                     help="How long from now until they are due; at once by default."),
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        queue_argument,
    )  # fmt: skip
    for option in options:
        run = option(run)
    return click.command("revive", help=_REVIVE_HELP)(run)


revive = _revive_command()
dead.add_command(revive)


@dead.command()
@queue_argument
@click.option("--before", type=MOMENT, metavar="MOMENT", help="Only those that died before then.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@on_store
def purge(store: Store, out: Output, queue: str, before: float | None, yes: bool) -> None:
    """Delete dead letters for good; asks first on a terminal, elsewhere it wants --yes.

    \b
    Example:
      bide dead purge orders --before 2026-11-01T00:00Z --yes
    """
    confirmed_purge(store, out, queue, "dead", before, yes)
