"""`bide ended`: list messages that have ended and are kept, by time and outcome."""

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import print_messages
from bide.cli.option import MORE, SCREEN
from bide.cli.output import Output, warn
from bide.cli.store import CommandStore
from bide.model.ended import why_not_kept
from bide.model.message import Message, State
from bide.queue.sync import Queue

OUTCOMES: tuple[State, ...] = ("acked", "expired", "dead")
"""The outcomes of messages that stay in their queue; of others only `bide history` knows."""

PIPE_ROW = "id state ended due attempts group error"

SCREEN_ROW = "id state ended due attempt group last-error"


@on_store(option.queue)
@option.choice("--how", OUTCOMES, "Only messages that have ended in this way.")
@option.moment("--after", "Only those that ended at this time or later; as --at of bide put.")
@option.moment("--before", "Only those that ended before this time.")
@option.limit
def ended(
    store: CommandStore,
    out: Output,
    queue: str,
    how: State | None,
    after: float | None,
    before: float | None,
    limit: int | None,
) -> None:
    """List messages that have ended and are kept, the first that ended first.

    These are dead letters, expired ones for a day, and acked ones if the queue keeps them: see bide
    set --keep. A queue keeps no cancelled and purged messages; bide history shows how one has ended
    if it remembers that.

    In a pipe, each line is: id, how, when it ended, due, attempts, group, last error.

    \b
    Example:
      bide ended orders --after 2026-12-01T08:00Z
      bide ended orders --how acked --json | jq -r .id
    """
    messages = store.existing(queue)
    outcomes = OUTCOMES if how is None else (how,)
    kept = merge(*(_within(messages, state, after, before) for state in outcomes), key=_moment)
    print_messages(
        out,
        kept,
        "no message that has ended in this time is kept",
        pipe=PIPE_ROW,
        screen=SCREEN_ROW,
        most=limit or (SCREEN if out.terminal else None),
        more="" if limit else MORE,
    )
    counts = messages.counts()
    for state in outcomes:
        if (reason := why_not_kept(queue, state, counts.keep, counts.history)) is not None:
            warn(reason)


_moment = attrgetter("ended")


def _within(
    queue: Queue, state: State, after: float | None, before: float | None
) -> Iterator[Message]:
    """Yield the messages in a state that ended within a time, in Unix seconds."""
    start = 0 if after is None else after * 1000
    end = float("inf") if before is None else before * 1000
    for message in queue.scan(state):
        if message.ended is not None and start <= message.ended < end:
            yield message
