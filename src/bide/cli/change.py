"""Change messages and queues: cancel, reschedule, purge; pause, resume, delete."""

import sys
from itertools import islice
from typing import Any

import click

from bide.cli import option
from bide.cli.errors import usage_error
from bide.cli.messages import print_outcomes
from bide.cli.output import DONE, NOT_DONE, Output, plural, warn
from bide.cli.store import Store, on_any_store, on_store
from bide.cli.undo import change, show_some, takes_back, undo_option
from bide.model.message import Message, State
from bide.model.replies import Affected
from bide.queue.command_builder import CommandBuilder
from bide.queue.undoing import bulk_of


@click.command()
@option.queue
@click.argument("ids", nargs=-1, metavar="[ID]...")
@option.rule
@option.if_due("Cancel")
@option.if_version("One message only: only if")
@option.flag("--dry-run", help="With a rule: only count, and show the first.")
@undo_option
@on_store
def cancel(
    store: Store, out: Output, queue: str, ids: tuple[str, ...], if_due: float | None,
    if_version: str | None, dry_run: bool, undoable: bool, **rule: Any,
) -> bool:  # fmt: skip
    """Cancel messages that no worker holds.

    By id, or by a rule. A confirmed cancel is final; one by a rule with --undo can be taken back
    for ten minutes. The exit code is 1 if one of the messages was not cancelled (a worker holds it,
    it is dead, it does not exist), or if the rule found nothing.

    In a pipe, each line is: id, "cancelled" or "no", state, why not. With a rule it is: cancelled
    (in a dry run would-cancel), number; with --undo also: undo, token.

    \b
    Example:
      bide cancel orders order-42
      bide cancel mail --group order:42
      bide cancel mail --after 2026-12-24T00:00Z --before 2026-12-27T00:00Z --dry-run
      bide cancel mail --group order:42 --undo
    """  # fmt: skip
    ruled = any(value is not None for value in rule.values())
    as_seen = if_due is not None or if_version is not None
    if ruled == bool(ids) or (ids and (dry_run or undoable)) or (ruled and as_seen):
        raise usage_error(
            "cancel takes ids (with --if-due or --if-version), or a rule of --group, --after and "
            "--before (with --dry-run or --undo)"
        )
    if if_version is not None and len(ids) > 1:
        raise usage_error("--if-version is the version of one message; cancel them one by one")
    if ids:
        orders = store.queue(queue)
        if as_seen:
            outcomes = [orders.cancel(id, if_due=if_due, if_version=if_version) for id in ids]
        else:
            outcomes = orders.cancel_many(ids)
        told = store.told(queue, outcomes)
        return print_outcomes(out, told, "cancelled", as_seen=as_seen)
    command = CommandBuilder(queue).cancel_where(**rule, dry_run=dry_run)
    if takes_back(undoable, dry_run):
        return change(store, out, queue, bulk_of(command), "cancelled")
    if dry_run:
        count = store.ask(Affected, command).count
    else:
        count = store.repeat(command, f"cancelling in {queue}")
    return _print_count(store, out, queue, "cancelled", count, dry_run=dry_run, **rule)


@click.command()
@option.queue
@click.argument("id", required=False)
@option.when
@option.if_due("Move")
@option.if_version("Only if")
@option.rule
@option.flag("--dry-run", help="With --group: only count, and show the first.")
@undo_option
@on_store
def reschedule(
    store: Store, out: Output, queue: str, id: str | None, if_due: float | None,
    if_version: str | None, delay: float | None, at: float | None, dry_run: bool, undoable: bool,
    **rule: Any,
) -> bool:  # fmt: skip
    """Move a message, or all of a group, to another due time, if no worker holds them.

    In a pipe, the line is: id, "moved" or "no", state, why not; with --group: moved (in a dry run
    would-move), number; with --undo also: undo, token. The exit code is 1 if nothing was moved: a
    worker holds the message, it is dead, or it does not exist.

    \b
    Example:
      bide reschedule orders order-42 --delay 1h
      bide reschedule orders order-42 --at 2026-12-01T09:00+01:00
      bide reschedule mail --group order:42 --delay 1d --undo
    """  # fmt: skip
    as_seen = if_due is not None or if_version is not None
    group = rule["group"]
    spans = rule["after"] is not None or rule["before"] is not None or dry_run or undoable
    if (id is None) == (group is None) or (group is None and spans) or (group and as_seen):
        raise usage_error(
            "reschedule takes an id (with --if-due or --if-version), or --group (with --after, "
            "--before, --dry-run and --undo)"
        )
    if (delay is None) == (at is None):
        raise usage_error("reschedule needs one new due time: --delay or --at")
    if id is not None:
        outcome = store.queue(queue).reschedule(
            id, delay=delay, at=at, if_due=if_due, if_version=if_version
        )
        return print_outcomes(out, store.told(queue, [outcome]), "moved", as_seen=as_seen)
    if takes_back(undoable, dry_run):
        builder = CommandBuilder(queue)
        bulk = bulk_of(builder.reschedule([], delay, at, None), builder.where(**rule))
        return change(store, out, queue, bulk, "moved")
    count = store.queue(queue).reschedule(delay=delay, at=at, dry_run=dry_run, **rule)
    return _print_count(store, out, queue, "moved", count, dry_run=dry_run, **rule)


def _print_count(
    store: Store, out: Output, queue: str, verb: str, count: int, *, dry_run: bool, **rule: Any
) -> bool:
    """Print how many messages a rule has changed, in a dry run also the first of them."""
    if not count:
        store.must_have(queue)
    out.changed(verb, count, plural(count, "message"), dry_run=dry_run, empty=NOT_DONE)
    if dry_run:
        found = store.queue(queue).scan(**rule)
        show_some(out, (message for message in found if message.state in ("delayed", "ready")))
    return count > 0


@click.command()
@option.queue
@on_any_store
def pause(store: Store, out: Output, queue: str) -> None:
    """Stop claims from a queue, until it is resumed.

    That holds for every process. Puts continue. A queue that does not exist yet can be paused. A
    line on stderr says so: it may be a typo.

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
@option.flag("--dry-run", help="Only count, and show the first.")
@undo_option
@option.flag("-y", "--yes", help="Do not ask.")
@on_store
def purge(
    store: Store, out: Output, queue: str, state: State, before: float | None, dry_run: bool,
    undoable: bool, yes: bool,
) -> None:  # fmt: skip
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
    """  # fmt: skip
    undoable = takes_back(undoable, dry_run)
    if dry_run:
        orders = store.existing(queue)
        count = orders.purge(state=state, before=before, dry_run=True)
        limit = None if before is None else round(before * 1000)
        out.changed("purged", count, plural(count, f"{state} message"), dry_run=True)
        fits = (one for one in orders.scan(state) if limit is None or _since(one) < limit)
        show_some(out, islice(fits, count))
        return
    confirmed_purge(store, out, queue, state, before, yes, undoable)


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


def _since(message: Message) -> int:
    """Return when a message entered its state; of a delayed or ready one, when it is due."""
    return message.due if message.ended is None else message.ended


def confirmed_purge(
    store: Store, out: Output, queue: str, state: State, before: float | None, yes: bool,
    undoable: bool,
) -> None:  # fmt: skip
    """Ask, unless it can be taken back, then delete a thousand messages at a time."""
    sizes = store.existing(queue).counts().sizes
    if undoable:
        bulk = bulk_of(CommandBuilder(queue).purge(state, before))
        change(store, out, queue, bulk, "purged", f"{state} message")
        return
    # Acked and expired messages are only counted together.
    counted = before is None and state not in ("acked", "expired")
    total = int(getattr(sizes, state)) if counted else None
    many = f"all {state} messages" if total is None else plural(total, f"{state} message")
    span = " from before that time" if before is not None else ""
    if not yes:
        confirm(f"Delete {many} of {queue}{span} permanently?")
    count = store.repeat(CommandBuilder(queue).purge(state, before), f"purging {queue}", total)
    out.changed("purged", count, plural(count, f"{state} message"), empty=DONE)


def confirm(question: str) -> None:
    """Ask on a terminal; elsewhere `--yes` is needed."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage_error("purge deletes messages permanently; confirm with --yes")
    if not click.confirm(question, err=True):
        click.get_current_context().exit(1)
