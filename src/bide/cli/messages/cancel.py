"""`bide cancel`: cancel messages that no worker holds."""

from typing import Any

import click

from bide.cli import option
from bide.cli.bulk import change_many, waiting
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.store import CommandStore


@on_store(option.queue, click.argument("ids", nargs=-1, metavar="[ID]..."), option.rule)
@option.if_due
@option.if_version
@option.flag("--dry-run", help="With a rule: only count, and show the first.")
@option.undo
def cancel(
    store: CommandStore,
    out: Output,
    queue: str,
    ids: tuple[str, ...],
    if_due: float | None,
    if_version: str | None,
    dry_run: bool,
    undoable: bool,
    **rule: Any,
) -> bool:
    """Cancel messages that no worker holds.

    Give ids, or a rule. A confirmed cancel is final; one by a rule with --undo can be taken back
    for ten minutes. The exit code is 1 if one of the messages was not cancelled (a worker holds it,
    it is dead, it does not exist), or if the rule found nothing.

    In a pipe, each line is: id, "cancelled" or "no", state, why not. With a rule it is: cancelled
    (in a dry run would-cancel), number; with --undo also: undo, token.

    \b
    Example:
      bide cancel orders order-42
      bide cancel mail --group order:42
      bide cancel mail --after 2026-12-24T00:00Z --group trip:7 --dry-run
      bide cancel mail --group order:42 --undo
    """
    ruled = any(value is not None for value in rule.values())
    as_seen = if_due is not None or if_version is not None
    if ruled == bool(ids) or (ids and (dry_run or undoable)) or (ruled and as_seen):
        raise usage_error(
            "cancel takes ids (with --if-due or --if-version), or a rule of --group, --after and "
            "--before (with --dry-run or --undo)"
        )
    if if_version is not None and len(ids) > 1:
        raise usage_error("--if-version is the version of one message; cancel them one by one")
    orders = store.queue(queue)
    if ids:
        if as_seen:
            outcomes = [orders.cancel(id, if_due=if_due, if_version=if_version) for id in ids]
        else:
            outcomes = orders.cancel_many(ids)
        return print_outcomes(store, out, queue, outcomes, "cancelled", as_seen=as_seen)
    return change_many(
        store,
        out,
        queue,
        "cancelled",
        lambda **how: orders.cancel(**rule, **how),
        dry_run=dry_run,
        undoable=undoable,
        some=lambda: waiting(orders, rule),
    )
