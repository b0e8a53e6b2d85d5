"""`bide ended`: list messages that have ended, by time and outcome."""

from collections.abc import Iterator
from functools import partial
from heapq import merge
from operator import attrgetter
from typing import Any

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.message_output import SCREEN_COLUMNS, as_json, row
from bide.cli.option import MORE, SCREEN
from bide.cli.output import ID, STYLES, TEXT, Cell, Column, Output, first_line, warn
from bide.cli.store import CommandStore
from bide.cli.times import iso, local, when
from bide.model.ended import ENDINGS, Ended, Ending, why_not_kept
from bide.model.message import Message, State
from bide.queue.sync import Queue

KEPT: tuple[State, ...] = ("acked", "expired", "dead")
"""The outcomes of messages that stay in their queue."""

KEPT_ROW = "id state ended due attempt group last-error"
"""The columns of a kept message on a terminal."""


@on_store(option.queue)
@option.choice("--how", ENDINGS, "Only messages that have ended in this way.")
@option.moment(
    "--after", "Only those that ended at this time or later; written like --at of bide put."
)
@option.moment("--before", "Only those that ended before this time.")
@option.limit
def ended(
    store: CommandStore,
    out: Output,
    queue: str,
    how: Ending | None,
    after: float | None,
    before: float | None,
    limit: int | None,
) -> None:
    """List messages that have ended, in the order in which they ended.

    If the queue has a history (bide set --history), these are all that it remembers, each id once,
    with its last end. Otherwise they are the messages that it keeps: dead letters, expired ones for
    a day, and acked ones if it has bide set --keep.

    In a pipe, each line is: id, how, when it ended, due, attempts, group of a kept message, by whom
    if the history says it, last error.

    \b
    Example:
      bide ended orders --after 2026-12-01T08:00Z
      bide ended orders --how acked --json | jq -r .id
    """
    messages = store.existing(queue)
    counts = messages.counts()
    shown: dict[str, Any] = {
        "most": limit or (SCREEN if out.terminal else None),
        "more": "" if limit else MORE,
    }
    if counts.history:
        out.items(
            messages.ended(how, after=after, before=before),
            [column for column, _ in _ENDED_COLUMNS],
            facts=partial(_facts, queue),
            line=_line,
            cells=lambda message: [cell(message) for _, cell in _ENDED_COLUMNS],
            empty="no message has ended in this time, as far as the queue remembers",
            **shown,
        )
        return
    outcomes = [state for state in KEPT if how in (None, state)]
    columns = [SCREEN_COLUMNS[name] for name in KEPT_ROW.split()]
    out.items(
        merge(*(_within(messages, state, after, before) for state in outcomes), key=_moment),
        [column for column, _ in columns],
        facts=lambda message: as_json(message, how=message.state, moment=message.ended),
        line=lambda message: [
            *row(message, "id state ended due attempts group"),
            "",
            first_line(message.error),
        ],
        cells=lambda message: [cell(message) for _, cell in columns],
        empty="no message that has ended in this time is kept",
        **shown,
    )
    for state in KEPT if how is None else (how,):
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


def _how(message: Ended) -> Cell:
    """Return how a message ended, in its color."""
    return message.how, STYLES[message.how]


_ENDED_COLUMNS: list[tuple[Column, Any]] = [
    (Column("id", least=ID), attrgetter("id")),
    (Column("how"), _how),
    (Column("ended"), lambda message: when(message.moment)),
    (Column("due", extra=True), lambda message: local(message.due)),
    (Column("attempts", right=True, extra=True), lambda message: str(message.attempt or "")),
    (Column("by", extra=True), lambda message: message.by or ""),
    (Column("last error", TEXT), lambda message: (first_line(message.error), "red")),
]
"""The columns on a terminal of a message that the history knows, each with what makes its cell."""


def _line(message: Ended) -> list[object]:
    """Return the columns in a pipe of a message that the history knows."""
    ended, due = iso(message.moment), iso(message.due)
    error = first_line(message.error)
    return [message.id, message.how, ended, due, message.attempt, "", message.by or "", error]


def _facts(queue: str, message: Ended) -> dict[str, Any]:
    """Return a message that the history knows for JSON, as `bide history` does."""
    return {
        "id": message.id,
        "queue": queue,
        "how": message.how,
        "moment": message.moment,
        "by": message.by,
        "due": message.due,
        "attempt": message.attempt,
        "attempts": message.attempts,
    }
