"""`bide undo`, and what the commands share that it takes back."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.messages import print_messages
from bide.cli.output import DONE, NOT_DONE, NOTHING, Output, plural, warn
from bide.cli.progress import Bar
from bide.cli.store import Store, on_store
from bide.lane.steps import run_steps
from bide.model.message import Message
from bide.model.undoing import UNDO_FOR, Bulk, Undo
from bide.queue.undoing import check_undo, steps_of, whole, whole_undo

SHOWN = 5
"""How many messages a dry run shows."""

MINUTES = UNDO_FOR // 60_000

undo_option = option.flag(
    "--undo", "undoable", help=f"Let it be taken back for {MINUTES} minutes: see bide undo."
)


def takes_back(undoable: bool, dry_run: bool) -> bool:
    """Tell whether a change can be taken back; refuse that of a dry run, which changes nothing."""
    check_undo(undoable, True, dry_run, None)
    return undoable


def change(
    store: Store, out: Output, queue: str, bulk: Bulk, verb: str, what: str = "message"
) -> bool:
    """Execute a bulk change that can be taken back, and print how; return whether any was changed.

    Args:
        store: the store.
        out: where to print.
        queue: its name.
        bulk: the change.
        verb: what it does, such as "cancelled".
        what: of which things.
    """
    bulk = msgspec.structs.replace(bulk, actor=store.actor)
    back = f"bide undo {queue} {bulk.undo}"
    try:
        with Bar(f"{queue}: {verb}") as bar:

            def ask(part: Bulk) -> Any:
                reply = _execute(store, part)
                bar.advance(reply.count)
                return reply

            count = run_steps(whole(bulk), ask)
    except BaseException as error:
        end = "interrupted" if isinstance(error, KeyboardInterrupt) else "it failed"
        warn(f"{end}; what was {verb} before can be taken back: {back}")
        raise
    if not count:
        store.must_have(queue)
    facts = {verb: count, **({"undo": bulk.undo} if count else {})}
    out.report(facts, DONE if count else NOT_DONE, f"{plural(count, what)} {verb}")
    if count and out.terminal:
        out.text((f"to take it back, within {MINUTES} minutes: {back}", "dim"))
    return count > 0


def _execute(store: Store, command: Bulk | Undo) -> Any:
    return store.run(steps_of(command, takes_back=store.lane.capabilities.takes_back))


def show_some(out: Output, messages: Iterable[Message]) -> None:
    """Show people the first messages that a dry run has counted."""
    if out.terminal and (some := list(islice(messages, SHOWN))):
        print_messages(out, some)


@click.command()
@option.queue
@click.argument("token")
@on_store
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
    steps = whole_undo(queue, token, store.actor)
    undone = run_steps(steps, lambda part: _execute(store, part))
    facts = msgspec.structs.asdict(undone)
    del facts["following"]
    told = {
        "whose id was put again or that were changed since": undone.taken,
        "that a worker has got since, or that have ended": undone.claimed,
        "of which it is not certain that they were changed": undone.unknown,
        "that were taken back before": undone.again,
    }
    mark = DONE if undone.restored else NOTHING
    out.report(facts, mark, f"{plural(undone.restored, 'message')} restored")
    if out.terminal:
        for why, count in told.items():
            if count:
                out.text((f"left as they are: {plural(count, 'message')} {why}", "dim"))
    return undone.restored > 0
