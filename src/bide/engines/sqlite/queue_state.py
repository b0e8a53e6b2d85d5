"""A queue in a SQLite file, in one transaction."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Any

from bide.engines.constants import PART
from bide.engines.rules.change import Change
from bide.engines.rules.record import Record
from bide.engines.sqlite.reading import QueueReader
from bide.engines.sqlite.tables import (
    ACKED,
    DELAYED,
    EXPIRED,
    READY,
    SQL,
    bounds_of,
    changeable,
    json_text,
    record_of,
    row_of,
)
from bide.model.command_parts import Origin, Where
from bide.model.commands import Ack, Lease
from bide.model.ended import ENDINGS, End, message_hint
from bide.model.limits import MAX_FORWARDED, MAX_RETURNED
from bide.model.message import EXPIRED_KEEP, FORGET, STATES, Item, State
from bide.model.rank import (
    EVERYTHING,
    delayed_reach,
    rank_when_ready,
)
from bide.model.replies import PAUSES
from bide.model.times import HOUR_MS

_CONTENT = (
    "data",
    "json",
    "due",
    "priority",
    "attempt",
    "attempts",
    "expires",
    "group",
    "headers",
    "failures",
    "planned",
    "asked",
    "rule",
    "run",
    "successor",
)
"""What commands change of a message, beside its place. Its body has the type of JSON or bytes."""

_content = attrgetter(*_CONTENT)


class SqliteQueue(QueueReader):
    """One queue: its row, and those of its messages that a command names."""

    _returned = False
    """Whether this transaction has returned a message to an earlier place."""

    def save_row(self) -> None:
        """Write back what has changed in the row of the queue, and in its limits."""
        if self._lines is not None:
            self._lines.save()
        if self._returned:
            self.run(SQL.drop_old_returns, (MAX_RETURNED,))
        row = self.row
        if (values := row.values()) != self.values_before:
            self.run(SQL.save_queue, (*values, row.id))

    # Records that a command names.

    def load(self, ids: Sequence[str], *, bodies: bool) -> dict[str, Record]:
        """Return the messages with some ids, by id; without their bodies unless asked for."""
        row = self.row
        # An int: for a bool, as for None, Python's driver first looks for an adapter.
        with_bodies = int(bodies)
        has_ready = row.ready  # if none is ready, the statement need not look for them
        rows = self.run(SQL.records, (with_bodies, has_ready, json_text(ids), row.id))
        records = [changeable(row, bodies=bodies) for row in rows]
        return {record.id: record for record in records}

    def each(self, ids: Sequence[str]) -> Iterator[Record]:
        """Yield the messages with any number of ids."""
        for start in range(0, len(ids), PART):
            yield from self.load(ids[start : start + PART], bodies=False).values()

    def apply(self, changes: Sequence[Change]) -> None:
        """Store changes, and count what they count."""
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        """Store one change: the rows, the counters, the ends, and what a scan must be told."""
        before, after, row = change.before, change.after, self.row
        if before is None or after is None or change.renewed:
            if before is not None:
                self._delete(before)
            if after is not None:
                self._insert(after)
        elif after is not before:
            self._update(change, before, after)
        record = after or before
        if record is None:
            return
        for name in change.counts:
            setattr(row, name, getattr(row, name) + 1)
        for end in change.ends:
            self._remember_end(record.id, end)
            was_stopping = before is not None and before.stopping is not None
            if row.result_ttl or was_stopping:  # a caller may wait for the end
                self._transaction.ends.append(message_hint(row.name, record.id))
        if change.returned:
            self.run(SQL.remember_return, (record.seq,))
            self._returned = True

    def _delete(self, record: Record) -> None:
        """Delete a record, and its successor."""
        self._leave(record)
        if record.successor is not None:
            self._save_successor(record, None)
        self.run(SQL.drop_message, (record.seq,))

    def _insert(self, record: Record) -> None:
        """Store a new record."""
        values = row_of(record.seq, self.row.id, record, record.due, record.created or 0)
        self.run(SQL.insert_message, values)
        self._enter(record)

    def _update(self, change: Change, before: Record, after: Record) -> None:
        """Store what a change has left of a record."""
        if change.moves:
            self._leave(before)
            self._save(before, after)
            self._enter(after)
            return
        if after.extended != before.extended:
            self.run(SQL.extend, (after.until, after.seq))
        if (after.stopping, after.progress) != (before.stopping, before.progress):
            progress = None if after.progress is None else json_text(after.progress)
            self.run(SQL.report, (after.stopping, progress, after.seq))
            if after.stopping != before.stopping:
                self._transaction.ends.append(message_hint(self.row.name, after.id))
        self._save(before, after)

    def _save(self, before: Record, after: Record) -> None:
        """Store what has changed in a record, beside its place in a set."""
        old, new = _content(before), _content(after)
        if old == new:
            return
        values = zip(_CONTENT, old, new, strict=True)
        changed = {name: value for name, was, value in values if value != was}
        if "successor" in changed:
            self._save_successor(before, changed.pop("successor"))
        if not changed:
            return
        if changed.pop("json", None) is not None or "data" in changed:
            changed["data"] = after.data.decode() if after.json else after.data
        for name in ("headers", "failures"):
            if changed.get(name) is not None:
                changed[name] = json_text(changed[name])
        columns = ", ".join(f'"{name}" = :{name}' for name in changed)
        changed["seq"] = after.seq
        self.run(f"UPDATE bide_message SET {columns} WHERE seq = :seq", changed)

    def _save_successor(self, record: Record, successor: Item | None) -> None:
        """Store or drop the successor of a record, which may have another one."""
        if record.successor is not None:
            self.row.successors -= 1
        if successor is not None:
            self.row.successors += 1
        if successor is None:
            self.run(SQL.drop_successor, (self.row.id, record.id))
        else:
            self.run(SQL.store_successor, (self.row.id, record.id, json_text(successor)))

    def _enter(self, record: Record) -> None:
        """Put a record into the set of its state."""
        assert record.state is not None
        row, code = self.row, STATES.index(record.state)
        row.add(record.state, 1)
        if record.state not in ("delayed", "ready"):
            self.run(SQL.insert_aside, (record.seq, row.id, code, record.rank))
            return
        self.count_hour(record.due, 1)
        self.run(SQL.insert_pending, (row.id, code, record.rank, record.seq))
        row.weighted = int(row.weighted or record.priority > 0)
        if record.state == "ready" and row.limited:
            self.lines.enter([(record.group, record.rank, record.seq)])

    def _leave(self, record: Record) -> None:
        """Remove a record from the set of its state."""
        assert record.state is not None
        row, code = self.row, STATES.index(record.state)
        row.add(record.state, -1)
        if record.state == "leased":
            self.run(SQL.drop_lease, (record.seq,))
            if row.limited:
                self.lines.stop([record.group])
        elif record.state not in ("delayed", "ready"):
            self.run(SQL.drop_aside, (record.seq,))
        else:
            self.count_hour(record.due, -1)
            self.run(SQL.drop_pending, (row.id, code, record.rank, record.seq))
            if record.state == "ready" and row.limited:
                self.lines.leave(record)

    def count_hour(self, due: int, count: int) -> None:
        """Count delayed and ready messages in the hour they are due: `count` more, or fewer."""
        hour = due // HOUR_MS
        self.changed_hours[hour] = self.changed_hours.get(hour, 0) + count

    def count_hours(self, dues: Iterable[int], sign: int) -> None:
        """Count delayed and ready messages by their due times; `sign` is -1 if they have gone."""
        for due, count in Counter(dues).items():
            self.count_hour(due, sign * count)

    def _remember_end(self, id: str, end: End) -> None:
        """Remember how a message ended."""
        row = self.row
        failures = json_text(end.failures) if end.failures else None
        result = None if end.result is None else end.result.decode()
        how = ENDINGS.index(end.how)
        values = (
            row.id,
            id,
            how,
            end.moment,
            end.by,
            end.due,
            end.attempt,
            end.since,
            failures,
            result,
        )
        self.run(SQL.remember_end, values)
        row.ended += 1

    def try_ack_all(self, command: Ack) -> bool:
        """Ack all messages of a command by a few statements, if all are held and none is kept."""
        row, leases = self.row, command.leases
        seqs = self._all_held(leases)
        if not seqs:
            return False
        if row.remembers:
            results = command.results if row.result_ttl else []
            texts = [None if result is None else result.decode() for result in results]
            rows = json_text(list(zip_longest(seqs, texts)))
            bounds = {"rows": rows, "now": self.now, "history": bool(row.history)}
            row.ended += self.run(SQL.remember_acked, bounds).rowcount
        if row.result_ttl:  # a caller may wait for the result
            self._transaction.ends += [message_hint(row.name, lease.id) for lease in leases]
        self._end_leases(seqs)
        row.acked += len(seqs)
        return True

    def _all_held(self, leases: Sequence[Lease]) -> list[int]:
        """Return the messages of leases if all are good and their acks delete them; else none."""
        ids = [lease.id for lease in leases]
        if self.row.keep or self.row.successors or len(set(ids)) < len(ids):
            return []
        rows = self.run(SQL.held, (json_text(ids), self.row.id, self.now)).fetchall()
        if [token for _, token in rows] != [lease.token for lease in leases]:
            return []
        return [seq for seq, _ in rows]

    def _end_leases(self, seqs: Sequence[int]) -> None:
        """Delete leased messages."""
        if self.row.limited:
            self.lines.stop_messages(seqs)
        self.run(SQL.drop_leases, (json_text(seqs),))
        self.run(SQL.drop_messages, (json_text(seqs),))
        self.row.leased -= len(seqs)

    # Claims.

    def forget(self) -> None:
        """Delete up to `FORGET` records, and ends, that were remembered for long enough."""
        row = self.row
        if row.kept:
            for state, keep in (ACKED, row.keep), (EXPIRED, max(row.keep, EXPIRED_KEEP)):
                kept = row.id, state, self.now - keep, FORGET
                rows = self.run(SQL.forgettable, kept).fetchall()
                self.run_many(SQL.drop_aside, rows)
                self.run_many(SQL.drop_message, rows)
                row.kept -= len(rows)
        if row.ended:
            bounds = row.id, self.now - row.ends_kept, FORGET
            row.ended -= self.run(SQL.forget_ends, bounds).rowcount
        if row.closed:
            row.closed -= self.run(SQL.forget_closed, (row.id, self.now, FORGET)).rowcount

    def lapsed(self, limit: int) -> Iterable[Record]:
        """Return the first records whose lease has expired."""
        if not self.row.leased:
            return ()
        rows = self.run(SQL.lapsed, (self.row.id, self.now, limit)).fetchall()
        return self.each([id for (id,) in rows])

    @property
    def _state_to_claim(self) -> int:
        """The state in which claims find due messages, by its number.

        Where due times alone order the messages, claims take them from the delayed ones: to make
        them ready first would be a second write. With priorities or limits, they are made ready.
        """
        row = self.row
        return READY if row.ready or row.weighted or row.limited else DELAYED

    def promote(self, limit: int) -> None:
        """Make the first delayed records that are due ready, if they are claimed as ready ones."""
        if self._state_to_claim == DELAYED:
            return
        row, due = self.row, delayed_reach(self.now)
        last = self.run(SQL.nth_due, (row.id, due, limit - 1)).fetchone() or (due, EVERYTHING)
        bounds = {"queue": row.id, "rank": last[0], "seq": last[1]}
        if row.limited and row.delayed:
            first = self.next_due(limit)
            self.lines.enter([(group, rank_when_ready(rank), seq) for rank, seq, group in first])
        if moved := self.run(SQL.promote, bounds).rowcount:
            self.run(SQL.drop_first, {**bounds, "state": DELAYED})
            row.delayed -= moved
            row.ready += moved

    def is_behind(self) -> bool:
        """Return whether due records of a limited queue are in no line yet."""
        due = delayed_reach(self.now)
        return self.run(SQL.nth_due, (self.row.id, due, 0)).fetchone() is not None

    def in_order(self, limit: int) -> Iterator[Record]:
        """Yield the next records to deliver, in order.

        In a limited queue, the caller must take each record out of its line (`lines.leave`) before
        it asks for the next one: which that is depends on the groups that were served.
        """
        if not self.row.limited:
            state = self._state_to_claim
            reach = EVERYTHING if state == READY else delayed_reach(self.now)
            yield from map(record_of, self.run(SQL.pick, (self.row.id, state, reach, limit)))
            return
        for _ in range(limit):
            if (head := self.lines.next()) is None:
                return
            yield head

    def lease(self, records: Sequence[Record], holder: str, until: int) -> None:
        """Lease records that `in_order` has yielded, by the token of the queue."""
        row, code = self.row, STATES.index(records[0].state or "ready")
        seqs = json_text([record.seq for record in records])
        grant = {"token": row.token, "since": self.now, "until": until, "holder": holder}
        self.run(SQL.lease, {"queue": row.id, "seqs": seqs, **grant})
        if row.limited:
            places = [(row.id, code, record.rank, record.seq) for record in records]
            self.run_many(SQL.drop_pending, places)
        else:  # they are the first ones, in order
            last = records[-1]
            bounds = {"queue": row.id, "state": code, "rank": last.rank, "seq": last.seq}
            self.run(SQL.drop_first, bounds)
        self.count_hours([record.due for record in records], -1)
        row.add(STATES[code], -len(records))
        row.leased += len(records)

    def next_moments(self) -> list[int]:
        """Return when the first delayed record is due, and when the first lease expires."""
        due = [self.number(SQL.next_due, self.row.id)] if self.row.delayed else []
        return due + ([self.number(SQL.next_lapse, self.row.id)] if self.row.leased else [])

    # Rules, states, and settings.

    def unheld(self, where: Where, limit: int) -> Iterable[Record]:
        """Return the first ready and delayed records that match a rule."""
        bounds = {"queue": self.row.id, "limit": limit, **bounds_of(where)}
        return self._selected(_unheld(where), bounds)

    def _selected(self, lists: Sequence[str], bounds: Any) -> Iterator[Record]:
        """Yield the messages whose sequence numbers some statements select."""
        seqs = [seq for rows in lists for (seq,) in self.run(rows, bounds)]
        return self.each([id for (id,) in self.run(SQL.ids, (json_text(seqs),))])

    def count_unheld(self, where: Where) -> int:
        """Count the ready and delayed records that match a rule."""
        bounds = {"queue": self.row.id, "limit": EVERYTHING, **bounds_of(where)}
        counts = (self.run(f"SELECT count(*) FROM ({rows})", bounds) for rows in _unheld(where))
        return sum(count for (count,) in chain.from_iterable(counts))

    def held(self, where: Where, limit: int) -> Iterable[Record]:
        """Return the first leased records that match a rule, but those that are stopping."""
        bounds = {"queue": self.row.id, "limit": limit, **bounds_of(where)}
        return self._selected([SQL.held_by_rule], bounds)

    def count_held(self, where: Where) -> int:
        """Count the leased records that match a rule, but those that are stopping."""
        bounds = {"queue": self.row.id, "limit": EVERYTHING, **bounds_of(where)}
        (count,) = self.run(f"SELECT count(*) FROM ({SQL.held_by_rule})", bounds).fetchone()
        return int(count)

    def purgeable(self, state: State, before: int | None, limit: int) -> Iterable[Record]:
        """Return the first records of a state that entered it before a time."""
        before = EVERYTHING if before is None else before
        if state == "ready":
            return self.unheld(Where(before=min(before, self.now + 1)), limit)
        if state == "delayed":
            where = Where(after=self.now + 1, before=before)
            bounds = {"queue": self.row.id, "limit": limit, **bounds_of(where)}
            return self._selected([SQL.delayed_between], bounds)
        aside = (self.row.id, STATES.index(state), before, limit)
        return self._selected([SQL.aside_before], aside)

    def begin_pause(self, until: int | None, actor: str | None) -> None:
        """Note the start of a pause, its end if it has one, and who asked for it."""
        self.run(SQL.begin_pause, (self.row.id, self.now, until, actor))
        self.run(SQL.forget_pauses, {"queue": self.row.id, "count": PAUSES})

    def end_pause(self, until: int | None) -> None:
        """Note when the last pause ends; `None`: when the queue is resumed."""
        self.run(SQL.end_pause, (until, self.row.id))

    def close_group(self, group: str, until: int) -> None:
        """Close a group, also one that is closed, until a time in Unix milliseconds."""
        is_new = self.run(SQL.closed_until, (self.row.id, group)).fetchone() is None
        self.run(SQL.close_group, (self.row.id, group, until))
        self.row.closed += is_new
        self._closings[group] = until

    def reopen_group(self, group: str) -> None:
        """Open a group that is closed."""
        self.row.closed -= self.run(SQL.reopen_group, (self.row.id, group)).rowcount
        self._closings[group] = None

    def forwarded(self, origin: Origin) -> Iterable[str]:
        """Forget the rows of an outbox that were deleted there; return those that are known."""
        if origin.before:
            self.run(SQL.forget_forwarded, (self.row.id, origin.outbox, origin.before))
        known = self.run(SQL.forwarded, (self.row.id, origin.outbox, json_text(origin.rows)))
        return [row for (row,) in known]

    def remember_forwarded(self, outbox: str, rows: Sequence[str]) -> None:
        """Remember rows of an outbox, the last `MAX_FORWARDED` of the queue."""
        self.run_many(SQL.remember_forwarded, [(self.row.id, outbox, row) for row in rows])
        self.run(SQL.drop_old_forwarded, {"queue": self.row.id, "most": MAX_FORWARDED})


def _unheld(where: Where) -> list[str]:
    """Return the statements that select the ready and delayed messages which match a rule."""
    return [SQL.ready_between, SQL.delayed_between] if where.group is None else [SQL.of_group]
