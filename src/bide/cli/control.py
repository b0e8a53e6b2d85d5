"""`bide pause`, `bide resume`, `bide purge` and `bide delete`."""

import sys

import click

from bide.cli import option
from bide.cli.errors import usage_error
from bide.cli.output import DONE, Output, plural, warn
from bide.cli.store import Store, on_any_store, on_store
from bide.model.message import State
from bide.queue.command_builder import CommandBuilder


@click.command()
@option.queue
@on_any_store
def pause(store: Store, out: Output, queue: str) -> None:
    """Stop claims from a queue, in every process, until it is resumed. Puts continue.

    A queue that does not exist yet can be paused. A line on stderr says so: it may be a typo.

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
@option.queue
@on_store
def resume(store: Store, out: Output, queue: str) -> None:
    """Let messages be claimed again.

    The exit code is 1 if the queue does not exist.

    \b
    Example:
      bide resume orders
    """
    store.existing(queue).resume()
    out.report({"queue": queue, "paused": False}, ("▶ ", "green"), f"{queue} is resumed")


@click.command()
@option.queue
@option.choice(
    "--state", ["delayed", "ready", "dead", "acked", "expired"],
    "The state. For acked and expired: forget these messages and their ids.", required=True,
)  # fmt: skip
@option.moment(
    "--before", "Only messages that entered the state (delayed, ready: fall due) before then."
)
@option.flag("-y", "--yes", help="Do not ask.")
@on_store
def purge(
    store: Store, out: Output, queue: str, state: State, before: float | None, yes: bool
) -> None:
    """Delete all messages of a state permanently. Messages that a worker holds stay.

    Asks first on a terminal; elsewhere it needs --yes. Prints how many were deleted ("purged" in a
    pipe and in JSON).

    Acked and expired messages have left the queue, which remembers their ids for a time. After a
    purge these ids can be put again.

    \b
    Example:
      bide purge orders --state dead --before 2026-11-01T00:00Z
      bide purge orders --state delayed --yes
    """  # fmt: skip
    confirmed_purge(store, out, queue, state, before, yes)


@click.command()
@option.queue
@on_store
def delete(store: Store, out: Output, queue: str) -> None:
    """Delete an empty queue, with its settings and counters.

    The exit code is 1 if there is no such queue, or if it holds messages: purge these first. A
    later put makes the queue again.

    \b
    Example:
      bide delete odrers
    """
    store.existing(queue).delete()
    out.report({"queue": queue, "deleted": True}, DONE, f"{queue} deleted")


def confirmed_purge(
    store: Store, out: Output, queue: str, state: State, before: float | None, yes: bool
) -> None:
    """Ask, then delete a thousand messages at a time."""
    sizes = store.existing(queue).counts().sizes
    # Acked and expired messages are only counted together.
    counted = before is None and state not in ("acked", "expired")
    total = int(getattr(sizes, state)) if counted else None
    many = f"all {state} messages" if total is None else plural(total, f"{state} message")
    span = " from before that time" if before is not None else ""
    confirm(f"Delete {many} of {queue}{span} permanently?", yes)
    count = store.repeat(CommandBuilder(queue).purge(state, before), f"purging {queue}", total)
    out.report({"purged": count}, DONE, f"{plural(count, f'{state} message')} purged")


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless `--yes` was given; elsewhere `--yes` is needed."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage_error("purge deletes messages permanently; confirm with --yes")
    if not click.confirm(question, err=True):
        click.get_current_context().exit(1)
