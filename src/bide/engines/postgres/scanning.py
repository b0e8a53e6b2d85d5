"""Scan: a page of messages, by state, by group, by due times, or by id."""

from collections.abc import Iterator, Sequence
from typing import Any

from bide.engines.cursor import (
    BEGIN,
    PHASES,
    Budget,
    Phase,
    Position,
    delayed_span,
    goes_by_set,
    position,
)
from bide.engines.postgres.batch import NEVER, PostgresBatch
from bide.engines.postgres.reading import FOREVER, message, now_of
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument
from bide.model.identity import range_of_ids
from bide.model.message import STATES, Message
from bide.model.replies import Page

MAX_DIGITS_OF_BIGINT = 19

_BY_ID = "id:"
"""How a cursor begins that goes on behind an id; all others of this kind are numbers."""

_RETURNED = "returned:"
"""How a cursor begins in the last part of a scan by due times: of what has returned to an earlier
place since the scan began. Then come the number of the last return before, and an id."""

PlacedRow = tuple[Any, str]
"""A row, and the cursor of the page that begins behind it."""


def scan(batch: PostgresBatch, command: cmd.Scan) -> Page:
    """Look at a page of messages."""
    now, budget = now_of(batch), Budget(command.max_bytes)
    messages: list[Message] = []
    next_page = command.cursor
    for row, cursor_behind in _Walk(batch, command, now, messages).rows():
        if not budget.takes(row.size):
            return Page(messages, next_page)
        messages.append(message(command.queue, row, now))
        next_page = cursor_behind
        if len(messages) == command.limit:
            return Page(messages, next_page)
    return Page(messages, None)


class _Walk:
    """Reads the rows of a page, and those behind them, as long as it is asked for more.

    Args:
        batch: calls the functions.
        scan: what is asked for.
        now: the time, in Unix milliseconds.
        messages: what is in the page already. It grows while this walks, which tells how many rows
            the page can still take.
    """

    def __init__(
        self, batch: PostgresBatch, scan: cmd.Scan, now: int, messages: Sequence[Message]
    ) -> None:
        self._batch, self._scan, self._now, self._messages = batch, scan, now, messages
        where = scan.where or cmd.Where()
        self._group = where.group
        self._due = where.after or 0, FOREVER if where.before is None else where.before
        """From when to before when the messages are due, in Unix milliseconds."""

    def rows(self) -> Iterator[PlacedRow]:
        """Yield the rows from where the cursor of the scan is.

        Raises:
            InvalidArgument: the cursor is of another kind of scan.
        """
        scan, cursor = self._scan, BEGIN if self._scan.cursor is None else self._scan.cursor
        if scan.state is not None or self._group is not None:
            return self._by_rank(position(scan.cursor))
        by_due = goes_by_set(scan)
        if cursor == BEGIN and not by_due:
            cursor = _BY_ID
        if cursor.startswith(_BY_ID):
            return self._by_id(cursor.removeprefix(_BY_ID))
        if by_due and not cursor.startswith(_RETURNED):
            return self._by_due(position(scan.cursor))
        since, _, id = cursor.removeprefix(_RETURNED).partition(":")
        if not by_due or not since.isdecimal() or len(since) > MAX_DIGITS_OF_BIGINT:
            raise InvalidArgument(
                f"cursor={cursor!r} is not from a scan of all messages; begin without one"
            )
        return self._returned(int(since) % NEVER, id)

    def _read(
        self,
        state: int | None,
        rank: int = 0,
        seq: int = 0,
        last_rank: int = NEVER,
        *,
        last_state: int | None = None,
        since: int | None = None,
        id: str = "",
        last_id: str | None = None,
    ) -> list[Any]:
        """Return the rows of a stretch, as many as the page can still take: see `_scan`.

        Args:
            state: the first state, by its number, or `None`: any, in the order of ids.
            rank: it begins behind this rank and `seq`.
            seq: breaks ties of `rank`; of a group, the number behind which it begins.
            last_rank: the last rank in the last state.
            last_state: the last state; `None`: the first one.
            since: only what has returned since this number.
            id: the id from which on it is; what has returned begins behind it.
            last_id: the id before which it ends; `None`: there is no such end.
        """
        return self._batch.call(
            "_scan",
            self._scan.queue,
            state=state,
            id=id,
            rank=rank,
            seq=seq,
            last=last_rank,
            group=self._group,
            after=self._due[0],
            before=self._due[1],
            limit=self._scan.limit - len(self._messages),
            max_bytes=self._scan.max_bytes,
            last_id=last_id,
            last_state=last_state,
            since=since,
        )

    def _by_id(self, after: str) -> Iterator[PlacedRow]:
        """Yield the messages of all states whose ids follow one, within the prefix of the scan."""
        first, last = range_of_ids(self._scan.prefix or "", after)
        return ((row, _BY_ID + row.id) for row in self._read(None, id=first, last_id=last))

    def _by_rank(self, start: Position) -> Iterator[PlacedRow]:
        """Yield the messages of a state, or of a group as they were put."""
        phases = PHASES[self._scan.state]
        for index in range(start.phase, len(phases)):
            phase = phases[index]
            after = start if index == start.phase else Position(index)
            rank, seq, last_rank = after.rank, after.seq, NEVER
            if phase.state == "delayed":
                rank, seq, last_rank = delayed_span(phase, after, self._due, self._now)
            state = None if phase.state is None else STATES.index(phase.state)
            for row in self._read(state, rank, seq, last_rank):
                place = 0 if state is None else row.rank  # a group goes by `seq` alone
                yield row, str(Position(index, place, row.seq))

    def _by_due(self, start: Position) -> Iterator[PlacedRow]:
        """Yield one state after another, as claims move messages; then what has returned.

        `start.phase` is the number of a state.
        """
        since = start.since
        if since is None:
            ((since,),) = self._batch.call("_last_return")
        if since is None:
            # Since the oldest open transaction began, more has returned than is remembered.
            yield from self._by_id("")
            return
        if start.phase == 0:  # delayed messages, whose rank tells the due time, are read by that
            span = delayed_span(Phase("delayed"), start, self._due, self._now)
            for row in self._read(0, *span):
                yield row, str(Position(0, row.rank, row.seq, since))
            start = Position(1)
        for row in self._read(start.phase, start.rank, start.seq, last_state=len(STATES)):
            yield row, str(Position(row.state, row.rank, row.seq, since))
        yield from self._returned(since, "")

    def _returned(self, since: int, after: str) -> Iterator[PlacedRow]:
        """Yield what has returned since a number; then all, if that is not all that has moved.

        Args:
            since: the number of the last return before the scan began.
            after: the id behind which it begins.
        """
        for row in self._read(None, since=since, id=after):
            yield row, f"{_RETURNED}{since}:{row.id}"
        ((is_complete,),) = self._batch.call("_remembers", since)
        if not is_complete:
            yield from self._by_id("")
