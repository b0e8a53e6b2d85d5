"""`bide pause`, `bide resume` and `bide purge`."""

import sys

import click

from bide.cli.exits import warn
from bide.cli.options import MOMENT, on_any_store, on_store, queue_argument
from bide.cli.output import Output
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.model import body as bodies
from bide.model.message import State
from bide.model.replies import Affected, Counts
from bide.queue.arguments import Arguments

__all__ = ["confirm", "confirmed_purge", "pause", "purge", "resume"]

PURGEABLE = click.Choice(["delayed", "ready", "dead", "acked", "expired"])


@click.command()
@queue_argument
@on_any_store
def pause(store: Store, out: Output, queue: str) -> None:
    """Let nobody claim from a queue, in any process, until it is resumed. Puts go on.

    A queue that does not exist yet can be paused; that is said on stderr, as it may be a slip of
    the pen.

    \b
    Example:
      bide pause orders
    """
    known = store.has(queue)
    store.queue(queue).pause()
    if not known:
        warn(f"{queue} is new: there was no such queue in {store.shown}")
    out.report({"queue": queue, "paused": True}, ("⏸ ", "yellow"), f"{queue} is paused")


@click.command()
@queue_argument
@on_store
def resume(store: Store, out: Output, queue: str) -> None:
    """Let messages be claimed again.

    Exit code 1 when there is no such queue.

    \b
    Example:
      bide resume orders
    """
    store.existing(queue).resume()
    out.report({"queue": queue, "paused": False}, ("▶ ", "green"), f"{queue} goes on")


@click.command()
@queue_argument
@click.option(
    "--state",
    type=PURGEABLE,
    required=True,
    help="Which: acked and expired are what is remembered of them.",
)
@click.option(
    "--before",
    type=MOMENT,
    metavar="MOMENT",
    help="Only what came into the state (delayed, ready: falls due) before then.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@on_store
def purge(
    store: Store, out: Output, queue: str, state: State, before: float | None, yes: bool
) -> None:
    """Delete all messages of a state that nobody holds.

    Asks first on a terminal; elsewhere it wants --yes.

    \b
    Example:
      bide purge orders --state dead --before 2026-11-01T00:00Z
      bide purge orders --state delayed --yes
    """  # fmt: skip
    confirmed_purge(store, out, queue, state, before, yes)


def confirmed_purge(
    store: Store, out: Output, queue: str, state: State, before: float | None, yes: bool
) -> None:
    """Ask, then delete a thousand messages at a time."""
    sizes = store.existing(queue).counts()
    total = None if before is not None else _size(sizes, state)
    many = "all" if total is None else f"{total:,}"
    span = " from before that moment" if before is not None else ""
    confirm(f"Delete {many} {state} messages of {queue}{span} for good?", yes)
    command = Arguments(queue, bodies.MAX_BODY).purge(state, before)
    count, more = 0, True
    with Bar(f"purging {queue}", total) as bar:
        while more:
            reply = store.ask(Affected, command)
            count, more = count + reply.count, reply.more
            bar.advance(reply.count)
    what = f"{count:,} {state} message{'' if count == 1 else 's'} purged"
    out.report({"purged": count}, ("✓ ", "green"), what)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless yes was said already; elsewhere it has to be."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "purge deletes messages for good; say --yes", click.get_current_context()
        )
    if not click.confirm(question, err=True):
        click.get_current_context().exit(1)


def _size(found: Counts, state: State) -> int | None:
    """Return how many messages are in a state; of what is remembered only the sum is known."""
    return None if state in ("acked", "expired") else int(getattr(found.sizes, state))
