"""`bide cancel`, `bide reschedule`, and `bide undo`, which takes them back."""

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.bulk import change_many
from bide.cli.errors import usage_error
from bide.cli.message_output import print_outcomes
from bide.cli.output import DONE, NOTHING, Output, plural
from bide.cli.store import Store, on_store
from bide.model.errors import NothingToUndo
from bide.model.message import Message
from bide.queue.sync import Queue


@on_store(option.queue, click.argument("ids", nargs=-1, metavar="[ID]..."), option.rule)
@option.if_due
@option.if_version
@option.flag("--dry-run", help="With a rule: only count, and show the first.")
@option.undo
def cancel(
    store: Store,
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
        some=lambda: _waiting(orders, rule),
    )


@on_store(option.queue, click.argument("id", required=False), option.when, option.if_due)
@option.if_version
@option.rule
@option.flag("--dry-run", help="With --group: only count, and show the first.")
@option.undo
def reschedule(
    store: Store,
    out: Output,
    queue: str,
    id: str | None,
    if_due: float | None,
    if_version: str | None,
    delay: float | None,
    at: float | None,
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
      bide reschedule mail --group order:42 --delay 1d --undo
    """
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
    orders = store.queue(queue)
    if id is not None:
        outcome = orders.reschedule(id, delay=delay, at=at, if_due=if_due, if_version=if_version)
        return print_outcomes(store, out, queue, [outcome], "rescheduled", as_seen=as_seen)
    return change_many(
        store,
        out,
        queue,
        "rescheduled",
        lambda **how: orders.reschedule(delay=delay, at=at, **rule, **how),
        dry_run=dry_run,
        undoable=undoable,
        some=lambda: _waiting(orders, rule),
    )


def _waiting(orders: Queue, rule: dict[str, Any]) -> Iterator[Message]:
    messages = orders.scan(**rule)
    return (message for message in messages if message.state in ("delayed", "ready"))


@on_store(option.queue, click.argument("token"))
def undo(store: Store, out: Output, queue: str, token: str) -> bool:
    """Take back a bulk change that was made with --undo, up to ten minutes ago.

    Messages come back as they were. Those whose id was put again since, or that a worker has got
    since, stay as they are. A second time restores nothing. The exit code is 1 if nothing was
    restored.

    \b
    In a pipe and in JSON:
      restored  as before the change
      taken     the id was put again, or the message was changed, since then
      claimed   a worker has got it since then, or it has ended
      unknown   it is not certain that it was changed: a process died meanwhile
      again     it was taken back before

    \b
    Example:
      bide cancel mail --group order:42 --undo
      bide undo mail 01kb2n8m7dzz4r6y0t5v9x3h1q
    """
    try:
        undone = store.queue(queue).undo(token)
    except NothingToUndo:
        store.must_have(queue)
        raise
    facts = msgspec.structs.asdict(undone)
    del facts["following"]
    unchanged = {
        "whose id was put again or that were changed since": undone.taken,
        "that a worker has got since, or that have ended": undone.claimed,
        "of which it is not certain that they were changed": undone.unknown,
        "that were taken back before": undone.again,
    }
    mark = DONE if undone.restored else NOTHING
    out.report(facts, mark, f"{plural(undone.restored, 'message')} restored")
    if out.terminal:
        for why, count in unchanged.items():
            if count:
                out.text((f"left as they are: {plural(count, 'message')} {why}", "dim"))
    return undone.restored > 0
