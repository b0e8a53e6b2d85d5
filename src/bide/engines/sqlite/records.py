"""The messages that a command names, as records, and their rows."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

from msgspec import MsgspecError
from msgspec.structs import replace

from bide.engines.limiter import key_of
from bide.engines.queue_rules import PART, Change, QueueRules
from bide.engines.record import Record
from bide.engines.sqlite.limits import Lines
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import (
    SQL,
    QueueRow,
    as_failures,
    as_headers,
    as_item,
    json_text,
    row_of,
)
from bide.model.command_parts import Lease
from bide.model.ended import ENDINGS, Ending, end_of
from bide.model.message import STATES
from bide.model.rank import PROMOTE, delayed_rank, delayed_reach, rank_when_ready, ready_rank
from bide.model.replies import AHEAD, Outcome, Outcomes, Pause

_CONTENT = (
    "data", "due", "priority", "attempt", "attempts", "expires", "group", "headers", "failures",
    "planned", "asked", "successor",
)  # fmt: skip
"""What commands change of a message, beside its place: columns, and its successor."""

_content = attrgetter(*_CONTENT)


class Records(QueueRules):
    """Those messages of a queue that a command names.

    Args:
        session: of the transaction.
        row: of the queue.
    """

    def __init__(self, session: Session, row: QueueRow) -> None:
        self.name, self.keep, self.paused = row.name, row.keep, bool(row.paused)
        self.lines: Lines | None = session.lines(row) if row.limited else None
        self.records = {}
        self._session, self._row, self._run = session, row, session.run
        self._stored: dict[int, tuple[Any, ...]] = {}

    def load(self, ids: Sequence[str]) -> list[Record]:
        """Return the messages with some ids, without their bodies, in place of others."""
        self.records.clear()
        self._stored.clear()
        for row in self._run(SQL.records, {"queue": self._row.id, "ids": json_text(ids)}):
            record = _record_of(row)
            self.records[record.id] = record
            self._stored[record.seq] = _content(record)
        return [self.records[id] for id in ids if id in self.records]

    def each(self, ids: Sequence[str]) -> Iterator[Record]:
        """Yield the messages with any number of ids."""
        for start in range(0, len(ids), PART):
            yield from self.load(ids[start : start + PART])

    def is_still(self, record: Record, if_version: str | None) -> bool:
        """Return whether a record has a version; only for this its body is read."""
        if if_version is None:
            return True
        data, is_json = self._run(SQL.body, (record.seq,)).fetchone()
        data = data.encode() if is_json else data
        return replace(record, data=data, json=bool(is_json)).is_still(if_version)

    def each_row(self, seqs: Sequence[int]) -> Iterator[Record]:
        """Yield the messages with any number of sequence numbers."""
        return self.each([id for (id,) in self._run(SQL.ids, (json_text(seqs),))])

    def insert(self, record: Record) -> None:
        """Store a record that is in no set yet."""
        created = record.created or 0
        row = row_of(record.seq, self._row.id, record, record.due, created)
        self._run(SQL.insert_message, row)
        self._stored[record.seq] = _content(record)

    def delete(self, record: Record) -> None:
        """Delete a record that is in no set."""
        self._run(SQL.drop_message, (record.seq,))

    def save(self, record: Record) -> None:
        """Store what has changed in a record, beside its place in a set."""
        before, after = self._stored[record.seq], _content(record)
        if after == before:
            return
        self._stored[record.seq] = after
        values = zip(_CONTENT, before, after, strict=True)
        changed = {name: new for name, old, new in values if new != old}
        if "successor" in changed:
            self._save_successor(record, changed.pop("successor"), before[-1])
        if changed and record.state is not None:
            if "data" in changed and record.json:
                changed["data"] = record.data.decode()
            for name in ("headers", "failures"):
                if changed.get(name) is not None:
                    changed[name] = json_text(changed[name])
            columns = ", ".join(f'"{name}" = :{name}' for name in changed)
            changed["seq"] = record.seq
            self._run(f"UPDATE bide_message SET {columns} WHERE seq = :seq", changed)

    def _save_successor(self, record: Record, after: Any, before: Any) -> None:
        self._row.successors += (after is not None) - (before is not None)
        if after is None:
            self._run(SQL.drop_successor, (self._row.id, record.id))
        else:
            self._run(SQL.store_successor, (self._row.id, record.id, json_text(after)))

    def enter(self, record: Record) -> None:
        """Put a record into the set of its state."""
        assert record.state is not None
        row, code = self._row, STATES.index(record.state)
        self._add_to_size(record, 1)
        if record.state not in ("delayed", "ready"):
            self._run(SQL.insert_aside, (record.seq, row.id, code, record.rank))
            return
        self._session.count_hours(row, [record.due])
        self._run(SQL.insert_pending, (row.id, code, record.rank, record.seq))
        row.weighted = int(row.weighted or record.priority > 0)
        if record.state == "ready" and self.lines:
            self.lines.enter([(record.group, record.rank, record.seq)])

    def leave(self, record: Record) -> None:
        """Remove a record from the set of its state."""
        assert record.state is not None
        row, code = self._row, STATES.index(record.state)
        self._add_to_size(record, -1)
        if record.state == "leased":
            self._run(SQL.drop_lease, (record.seq,))
            if self.lines:
                self.lines.stop([record.group])
        elif record.state not in ("delayed", "ready"):
            self._run(SQL.drop_aside, (record.seq,))
        else:
            self._session.count_hours(row, [record.due], -1)
            self._run(SQL.drop_pending, (row.id, code, record.rank, record.seq))
            if record.state == "ready" and self.lines:
                self.lines.leave(key_of(record.group), record.rank, record.seq)

    def _add_to_size(self, record: Record, count: int) -> None:
        """Change the number of messages in the state of a record."""
        name = "kept" if record.state in ("acked", "expired") else str(record.state)
        setattr(self._row, name, getattr(self._row, name) + count)

    def count(self, change: str) -> None:
        """Count a change."""
        setattr(self._row, change, getattr(self._row, change) + 1)

    def extend(self, record: Record, until: int) -> None:
        """Extend the lease of a record."""
        record.until = until
        self._run(SQL.extend, (until, record.seq))

    def remember_end(
        self, record: Record, how: Ending, by: str | None, now: int, result: bytes | None = None
    ) -> None:
        """Remember how a message ended, if the queue does."""
        row = self._row
        if not row.remembers:
            return
        failures = json_text(record.failures) if row.history and record.failures else None
        text = result.decode() if row.result_ttl and result is not None else None
        values = (
            row.id, record.id, ENDINGS.index(how), now, by, record.due, record.attempt,
            record.since, failures, text,
        )  # fmt: skip
        self._run(SQL.remember_end, values)
        row.ended += 1
        if row.result_ttl:  # a caller may wait for the result
            self._session.ends.append(end_of(row.name, record.id))

    @property
    def pauses(self) -> list[Pause]:  # type: ignore[override]
        """The last pauses of the queue."""
        found = [Pause(*row) for row in self._run(SQL.pauses, (self._row.id,))]
        is_known = bool(found) and found[-1].until is None
        return found if is_known or not self.paused else [*found, Pause(None)]

    def ahead(self, record: Record, now: int) -> int:
        """Count the messages that are delivered before a ready record, up to `AHEAD` + 1."""
        mine = ready_rank(record.due, record.priority), record.seq
        row, run = self._row, self._run
        if self.lines:
            before = self.lines.ahead(record.group, *mine, AHEAD + 1)
        else:
            bounds = {"queue": row.id, "rank": mine[0], "seq": mine[1], "limit": AHEAD + 1}
            before = len(run(SQL.ready_before, bounds).fetchall())
        due = run(SQL.first_due, (row.id, delayed_reach(now), PROMOTE)).fetchall()
        if record.state == "delayed" and (record.rank, record.seq) not in due:
            return AHEAD + 1
        if self.lines and due:
            groups = self._session.groups_of([seq for _, seq in due])
            due = [(rank, seq) for rank, seq in due if groups[seq] == record.group]
        for rank, seq in due:
            before += (rank_when_ready(rank), seq) < mine
        return min(before, AHEAD + 1)


def change_each(
    session: Session, command: Any, names: Sequence[str | Lease], change: Change
) -> Outcomes:
    """Change the messages that a command names, by id or by lease."""
    row = session.open(command.queue)
    ids = [name if isinstance(name, str) else name.id for name in names]
    if not row.id:
        return Outcomes([Outcome(id, False) for id in ids])
    return Records(session, row).change_each(command, names, change, session.now)


def _record_of(row: tuple[Any, ...]) -> Record:
    """Return a row of the statement `records` as a record."""
    record: Any = Record(*row)
    record.headers = _read(as_headers, record.headers) if record.headers else None
    record.failures = _read(as_failures, record.failures) if record.failures else ()
    record.created = record.created or None
    record.successor = as_item(record.successor) if record.successor else None
    record.state = STATES[record.state]
    match record.state:
        case "delayed":
            record.rank = delayed_rank(record.due, record.priority)
        case "ready":
            record.rank = ready_rank(record.due, record.priority)
    return cast("Record", record)


def _read(decode: Callable[[str], Any], text: str) -> Any:
    """Return what a column says; `None` if it cannot be read, so that another failure cannot join.

    Commands that do not need it work: a message with such a column can be cancelled, for instance.
    """
    try:
        return decode(text)
    except (ValueError, TypeError, MsgspecError):
        return None
