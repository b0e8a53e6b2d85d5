"""`bide cancel` and `bide reschedule`."""

from typing import Any

import click

from bide.cli.messages import print_outcomes
from bide.cli.options import (
    MOMENT,
    on_store,
    queue_argument,
    rule_options,
    version_option,
    when_options,
)
from bide.cli.output import Output
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.model import body as bodies
from bide.model.commands import Cancel
from bide.model.replies import Affected
from bide.queue.arguments import Arguments

__all__ = ["cancel", "reschedule"]


@click.command()
@queue_argument
@click.argument("ids", nargs=-1, metavar="[ID]...")
@rule_options
@click.option(
    "--if-due",
    type=MOMENT,
    metavar="MOMENT",
    help="Only if it is still due then, so that you cancel what you saw.",
)
@version_option("One message only: only if")
@click.option("--dry-run", is_flag=True, help="With a rule: only count.")
@on_store
def cancel(
    store: Store,
    out: Output,
    queue: str,
    ids: tuple[str, ...],
    if_due: float | None,
    if_version: str | None,
    dry_run: bool,
    **rule: Any,
) -> bool:
    """Take messages back before somebody holds them: by id, or by a rule.

    A cancel that says it is done is final. Exit code 1 when one of the messages was not cancelled
    (a worker holds it, it is dead, there is none), or when the rule found nothing.

    \b
    Example:
      bide cancel orders order-42
      bide cancel mail --group order:42
      bide cancel mail --after 2026-12-24T00:00Z --before 2026-12-27T00:00Z --dry-run
    """  # fmt: skip
    ruled = any(value is not None for value in rule.values())
    as_seen = if_due is not None or if_version is not None
    if ruled == bool(ids) or (ids and dry_run) or (ruled and as_seen):
        raise click.UsageError(
            "cancel takes ids (with --if-due or --if-version), or a rule of --group, --after and "
            "--before (with --dry-run)",
            click.get_current_context(),
        )
    if if_version is not None and len(ids) > 1:
        raise click.UsageError(
            "--if-version is of one message; cancel them one by one", click.get_current_context()
        )
    if ids:
        orders = store.queue(queue)
        if as_seen:
            outcomes = [orders.cancel(id, if_due=if_due, if_version=if_version) for id in ids]
        else:
            outcomes = orders.cancel_many(ids)
        told = store.told(queue, outcomes)
        return print_outcomes(out, told, "cancelled", as_seen=as_seen)
    ask = Arguments(queue, bodies.MAX_BODY)
    count = _cancel_all(store, ask.cancel_where(**rule, dry_run=True), dry_run)
    if not count:
        store.must_have(queue)
    verb = "would be cancelled" if dry_run else "cancelled"
    mark = ("✓ ", "green") if count else ("✗ ", "red")
    sentence = f"{count:,} message{'' if count == 1 else 's'} {verb}"
    would = {"cancelled": "would-cancel"} if dry_run else None
    out.report({"cancelled": count}, mark, sentence, would=would)
    return count > 0


def _cancel_all(store: Store, dry: Cancel, dry_run: bool) -> int:
    """Count what a rule finds or, a thousand at a time, cancel it."""
    if dry_run:
        return store.ask(Affected, dry).count
    command = Cancel(dry.queue, where=dry.where)
    with Bar(f"cancelling in {dry.queue}") as bar:
        count, more = 0, True
        while more:
            reply = store.ask(Affected, command)
            count, more = count + reply.count, reply.more
            bar.advance(reply.count)
    return count


@click.command()
@queue_argument
@click.argument("id")
@when_options
@click.option(
    "--if-due",
    type=MOMENT,
    metavar="MOMENT",
    help="Only if it is still due then, so that you move what you saw.",
)
@version_option("Only if")
@on_store
def reschedule(
    store: Store,
    out: Output,
    queue: str,
    id: str,
    delay: float | None,
    at: float | None,
    if_due: float | None,
    if_version: str | None,
) -> bool:
    """Move a message that nobody holds to another moment.

    Exit code 1 when it was not moved: a worker holds it, it is dead, or there is no such message.

    \b
    Example:
      bide reschedule orders order-42 --delay 1h
      bide reschedule orders order-42 --at 2026-12-01T09:00+01:00
    """  # fmt: skip
    if (delay is None) == (at is None):
        raise click.UsageError(
            "reschedule needs one new moment: --delay or --at", click.get_current_context()
        )
    outcome = store.queue(queue).reschedule(
        id, delay=delay, at=at, if_due=if_due, if_version=if_version
    )
    as_seen = if_due is not None or if_version is not None
    return print_outcomes(out, store.told(queue, [outcome]), "moved", as_seen=as_seen)
