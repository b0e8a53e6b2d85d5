"""`bide cancel`: cancel messages, also those that workers hold."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

from bide.cli import option
from bide.cli.bulk import change_many, waiting
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.model.commands import Cancel, History
from bide.model.replies import Ends, Outcome, expect
from bide.queue.steps import after_stop


@on_store(option.queue, click.argument("ids", nargs=-1, metavar="[ID]..."), option.rule)
@option.if_due
@option.if_version
@option.flag("--running", help="Also ask the workers of running messages to stop.")
@option.time("--wait", "With ids and --running: how long to wait until they have ended.")
@option.flag("--dry-run", help="With a rule: only count the messages, and show the first ones.")
@option.undo
def cancel(
    store: CommandStore,
    out: Output,
    queue: str,
    ids: tuple[str, ...],
    if_due: float | None,
    if_version: str | None,
    running: bool,
    wait: float | None,
    dry_run: bool,
    undoable: bool,
    **rule: Any,
) -> bool:
    """Cancel messages that no worker holds; with --running, leased ones too.

    Give ids, or a rule. A confirmed cancel is final; a cancel by rule with --undo can be taken back
    for ten minutes. The exit code is 1 if one of the messages was not cancelled (a worker holds it,
    it is dead, it does not exist), or if the rule found nothing.

    With --running, the worker that holds a message is asked to stop: then the message is
    "stopping", and counts as cancelled unless its worker still acks it. With --wait, the exit code
    is 1 if it was acked, or is still stopping.

    If a message repeats, all its runs are cancelled. If a worker holds one, that run goes on, and
    is the last one: then the message is "ending", and the exit code is 1.

    In a pipe, each line is: id, "cancelled", "stopping", "ending" or "no", state, why not. With a
    rule it is: cancelled (in a dry run would-cancel), number; with --running also: stopping,
    number; with --undo also: undo, token.

    \b
    Example:
      bide cancel orders order-42
      bide cancel orders order-42 --running --wait 30s
      bide cancel mail --group order:42
      bide cancel mail --after 2026-12-24T00:00Z --group trip:7 --dry-run
      bide cancel mail --group order:42 --undo
    """
    has_rule = any(value is not None for value in rule.values())
    as_seen = if_due is not None or if_version is not None
    if has_rule == bool(ids) or (ids and (dry_run or undoable)) or (has_rule and as_seen):
        raise usage_error(
            "after the queue, cancel takes ids (with --if-due or --if-version), or a rule of "
            "--group, --after and --before (with --dry-run or --undo)"
        )
    if if_version is not None and len(ids) > 1:
        raise usage_error("--if-version is the version of one message; cancel them one by one")
    if wait is not None and not (running and ids):
        raise usage_error("--wait is for ids with --running")
    if running and undoable:
        raise usage_error("--undo and --running cannot be combined: what was stopped cannot go on")
    orders = store.queue(queue)
    if ids:
        outcomes: Iterable[Outcome]
        if as_seen:
            outcomes = [
                orders.cancel(id, if_due=if_due, if_version=if_version, running=running)
                for id in ids
            ]
        else:
            outcomes = orders.cancel_many(ids, running=running)
        if wait is not None:
            outcomes = _after_wait(store, queue, outcomes, wait)
        return print_outcomes(
            store, out, queue, outcomes, "cancelled", as_seen=as_seen, waited=wait is not None
        )
    rule_and_running = {**rule, "running": running}
    return change_many(
        store,
        out,
        queue,
        "cancelled",
        lambda **how: orders.cancel(**rule_and_running, **how),
        dry_run=dry_run,
        undoable=undoable,
        preview=lambda: waiting(orders, rule, running=running),
    )


def _after_wait(
    store: CommandStore, queue: str, outcomes: Iterable[Outcome], seconds: float
) -> Iterator[Outcome]:
    """Yield outcomes; of a message that is stopping, how it ended.

    Args:
        store: the store.
        queue: the name of the queue.
        outcomes: the outcomes of the cancels.
        seconds: how long to wait for all of them together.
    """
    deadline = time.monotonic() + seconds
    for outcome in outcomes:
        if outcome.state == "stopping":
            watch = History(queue, outcome.id, watch=True)
            reply = store.lane.call(watch, wait=max(0.0, deadline - time.monotonic()))
            command = Cancel(queue, [outcome.id], running=True, actor=store.actor)
            yield store.run(after_stop(command, outcome, expect(Ends, reply)))
        else:
            yield outcome
