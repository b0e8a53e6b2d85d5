"""Change many messages: ask first, only count, or let `bide undo` take it back."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import click

from bide.cli import option
from bide.cli.errors import usage_error
from bide.cli.message_output import print_messages
from bide.cli.output import DONE, NOTHING, Bar, Output, plural, warn
from bide.cli.store import CommandStore
from bide.model.message import Message, State
from bide.model.undoing import Undoable
from bide.queue.arguments import check_undo
from bide.queue.results import Cancelled
from bide.queue.sync import Queue

STOPPING = "unless their workers still ack them, they count as cancelled"
"""What becomes of messages whose workers were asked to stop."""

PREVIEW_COUNT = 5
"""How many messages a dry run shows."""


def change_many(
    store: CommandStore,
    out: Output,
    queue: str,
    verb: str,
    change: Callable[..., int],
    *,
    dry_run: bool,
    undoable: bool,
    preview: Callable[[], Iterable[Message]],
    what: str = "message",
    where: str = "",
) -> bool:
    """Change messages, and print how many; return whether any was changed, or would be.

    Args:
        store: the store.
        out: where to print.
        queue: the name of the queue.
        verb: "cancelled", "rescheduled", "purged" or "revived".
        change: changes them; takes `dry_run` and `undo`, and returns how many, as `Queue` does.
            If it is `Cancelled`, what is stopping is printed as well.
        dry_run: whether they are only counted.
        undoable: whether it can be taken back.
        preview: returns the messages, the first of which a dry run shows to people.
        what: the noun for the messages.
        where: text after the noun.
    """
    check_undo(undoable, several=True, dry_run=dry_run, within=None)
    try:
        activity = "counting" if dry_run else verb.removesuffix("ed") + "ing"
        with Bar(f"{activity} in {queue}"):
            count = change(dry_run=dry_run, undo=undoable)
    except BaseException as error:
        # A note tells how to undo what was done before the error: here with a command.
        for note in getattr(error, "__notes__", ()):
            warn(re.sub(r"undo\('(\w+)'\)", rf"bide undo {queue} \1", note))
        raise
    stopping = count.stopping if isinstance(count, Cancelled) and not dry_run else None
    if not (count or stopping):
        store.must_have(queue)
    facts: dict[str, Any] = {verb: int(count)}
    if stopping is not None:
        facts["stopping"] = stopping
    if count and isinstance(count, Undoable):
        facts["undo"] = count.undo
    mark = DONE if (count or stopping) and not dry_run else NOTHING
    predicate = f"would be {verb}" if dry_run else verb
    sentence = f"{plural(count, what)}{where} {predicate}"
    if stopping:
        sentence += f", {stopping:,} stopping: {STOPPING}"
    out.report(facts, mark, sentence, dry_run=dry_run)
    if out.terminal and "undo" in facts:
        hint = f"to take it back, within {option.MINUTES} minutes: "
        out.text((f"{hint}bide undo {queue} {facts['undo']}", "dim"))
    if out.terminal and dry_run and (first := list(islice(preview(), PREVIEW_COUNT))):
        print_messages(out, first)
    return count > 0 or bool(stopping)


def purge_state(
    store: CommandStore,
    out: Output,
    queue: str,
    state: State,
    before: float | None,
    *,
    dry_run: bool,
    undoable: bool,
    yes: bool,
) -> None:
    """Delete the messages of a state. Ask first, but for a dry run, `undoable` or `yes`."""
    orders = store.existing(queue)
    if not (yes or undoable or dry_run):
        # Acked and expired messages are only counted together.
        is_counted = before is None and state not in ("acked", "expired")
        total: int | None = getattr(orders.counts().sizes, state) if is_counted else None
        messages = f"all {state} messages" if total is None else plural(total, f"{state} message")
        condition = " from before that time" if before is not None else ""
        confirm(f"Delete {messages} of {queue}{condition} permanently?", total)

    def messages_of_state() -> Iterable[Message]:
        return (
            message
            for message in orders.scan(state)
            if before is None
            or (message.due if message.ended is None else message.ended) < before * 1000
        )

    change_many(
        store,
        out,
        queue,
        "purged",
        lambda **how: orders.purge(state=state, before=before, **how),
        dry_run=dry_run,
        undoable=undoable,
        preview=messages_of_state,
        what=f"{state} message",
    )


def confirm(question: str, count: int | None) -> None:
    """Ask on a terminal, unless there is nothing to delete; elsewhere `--yes` is needed.

    A no ends the command with exit code 1.

    Args:
        question: the question.
        count: how many messages would be deleted; `None`: that is not known.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage_error("purge deletes messages permanently; confirm with --yes")
    if count != 0 and not click.confirm(question, err=True):
        click.get_current_context().exit(1)


def waiting(queue: Queue, rule: dict[str, Any], *, running: bool = False) -> Iterator[Message]:
    """Return the delayed and ready messages that a rule names; with `running` also leased ones."""
    for message in queue.scan(**rule):
        is_running = message.state == "leased" and message.stopping is None
        if message.state in ("delayed", "ready") or (running and is_running):
            yield message
