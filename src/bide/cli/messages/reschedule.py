"""`bide reschedule`: move a message, or all of a group, to another due time."""

from typing import Any

import click

from bide.cli import option
from bide.cli.bulk import change_many
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.rules import check_date
from bide.cli.store import CommandStore
from bide.queue.steps import is_movable


@on_store(option.queue, click.argument("id", required=False), option.when, option.timezone)
@option.if_due
@option.if_version
@option.rule
@option.flag("--dry-run", help="With --group: only count the messages, and show the first ones.")
@option.undo
def reschedule(
    store: CommandStore,
    out: Output,
    queue: str,
    id: str | None,
    if_due: float | None,
    if_version: str | None,
    delay: float | None,
    at: float | str | None,
    timezone: str | None,
    dry_run: bool,
    undoable: bool,
    **rule: Any,
) -> bool:
    """Move a message, or all of a group, to another due time, if no worker holds them.

    In a pipe, the line is: id, "rescheduled" or "no", state, why not; with --group: rescheduled (in
    a dry run would-reschedule), number; with --undo also: undo, token. The exit code is 1 if
    nothing was rescheduled: a worker holds the message, it is dead, or it does not exist.

    \b
    Example:
      bide reschedule orders order-42 --delay 1h
      bide reschedule orders order-42 --at 2026-12-01T09:00+01:00
      bide reschedule mail ann --at "2026-12-01 09:00" --timezone Europe/Berlin
      bide reschedule mail --group order:42 --delay 1d --undo
    """
    as_seen = if_due is not None or if_version is not None
    group = rule["group"]
    has_rule_options = (
        rule["after"] is not None or rule["before"] is not None or dry_run or undoable
    )
    needs_group = has_rule_options and group is None
    if (id is None) == (group is None) or needs_group or (group and as_seen):
        raise usage_error(
            "reschedule takes an id (with --if-due or --if-version), or --group (with --after, "
            "--before, --dry-run and --undo)"
        )
    check_date({"at": at, "delay": delay}, timezone)
    if (delay is None) == (at is None):
        raise usage_error("reschedule needs one new due time: --delay or --at")
    if timezone is not None and undoable:
        raise usage_error("--undo and --timezone cannot be used together")
    orders = store.queue(queue)
    when: dict[str, Any] = {"delay": delay, "at": at, "timezone": timezone}
    if id is not None:
        outcome = orders.reschedule(id, **when, if_due=if_due, if_version=if_version)
        return print_outcomes(store, out, queue, [outcome], "rescheduled", as_seen=as_seen)
    return change_many(
        store,
        out,
        queue,
        "rescheduled",
        lambda **how: orders.reschedule(**when, **rule, **how),
        dry_run=dry_run,
        undoable=undoable,
        preview=lambda: filter(is_movable, orders.scan(**rule)),
    )
