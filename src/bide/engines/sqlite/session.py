"""One transaction: the queues it touches, and where the messages it names stand."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from bide.engines.sqlite.statements import SQL
from bide.model.message import (
    EXPIRED_KEEP,
    FORGET,
    LAPSED,
    REASON_LENGTH,
    STATES,
    Failure,
    Message,
    State,
    remember,
)
from bide.model.rank import delayed_rank, ready_rank
from bide.model.replies import Flow, Outcome

__all__ = [
    "ACKED",
    "DEAD",
    "DELAYED",
    "EXPIRED",
    "HOUR",
    "LEASED",
    "READY",
    "Place",
    "QueueRow",
    "Session",
    "as_failures",
    "as_headers",
    "as_message",
    "json_text",
    "size_of_row",
]

DELAYED, READY, LEASED, DEAD, ACKED, EXPIRED = range(6)

HOUR = 3_600_000

_encode = msgspec.json.Encoder().encode
as_headers = msgspec.json.Decoder(dict[str, str]).decode
as_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode


def json_text(value: Any) -> str:
    """Return a value as JSON text, as SQLite's own functions read it."""
    return _encode(value).decode()


class QueueRow(msgspec.Struct, gc=False):
    """A row of the table `queue`, changed here and written back at the end of the transaction."""

    id: int
    name: str
    paused: int
    keep: int
    weighted: int
    token: int
    delayed: int
    ready: int
    leased: int
    dead: int
    kept: int
    put: int
    acked: int
    cancelled: int
    expired: int
    purged: int
    died: int
    revived: int
    retried: int
    lapsed: int

    def values(self) -> tuple[Any, ...]:
        """Return the columns from `paused` on."""
        return msgspec.structs.astuple(self)[2:]

    def flow(self) -> Flow:
        """Return the counters of what has happened."""
        return Flow(*msgspec.structs.astuple(self)[11:])


class Place(NamedTuple):
    """Where a message stands: a row of the statement `locate`."""

    id: str
    seq: int
    due: int
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    token: int | None
    until: int | None
    holder: str | None
    aside: int | None
    ended: int | None

    def state(self, now: int) -> State:
        """Return the state as users see it."""
        if self.aside is not None:
            return STATES[self.aside]
        if self.token is not None:
            return "leased"
        return "ready" if self.due <= now else "delayed"

    def outcome(self, done: bool, now: int) -> Outcome:
        """Tell where the message stands."""
        until = self.until if self.token is not None else self.ended
        return Outcome(self.id, done, self.state(now), self.due, until, self.holder)


def as_message(queue: str, row: Sequence[Any], now: int) -> Message:
    """Return a row of `find` or of a scan as the message that it tells of."""
    (id, data, due, priority, attempt, attempts, expires, group, headers, failures,
     code, holder, until, ended) = row[:14]  # fmt: skip
    if code == DELAYED and due <= now:
        code = READY
    is_json = isinstance(data, str)
    return Message(
        id, queue, data.encode() if is_json else data, is_json, due, priority,
        attempt + (code == LEASED), attempts, STATES[code], expires, group,
        as_headers(headers) if headers else None, as_failures(failures) if failures else (),
        holder, until, ended,
    )  # fmt: skip


def size_of_row(id: str, data: str | bytes, headers: str | None, failures: str | None) -> int:
    """Return how many bytes a message takes in a reply."""
    size = len(id) + (len(data.encode()) if isinstance(data, str) else len(data))
    return size + len(headers or "") + len(failures or "")


class Session:
    """What the verbs of one batch share: the connection, the moment, and the rows of queues."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.run = connection.execute
        self.run_many = connection.executemany
        self.now = int(now)
        self.exactly = now
        self._queues: dict[str, tuple[QueueRow, tuple[Any, ...]]] = {}
        self._seq: int | None = None
        self._uncounted: Counter[tuple[int, int]] | None = None
        self._hours: Counter[tuple[int, int]] = Counter()

    # Queues.

    def look(self, name: str) -> QueueRow | None:
        """Return the row of a queue as it is, `None` when there is no such queue."""
        known = self._queues.get(name)
        if known is None:
            row = self.run(SQL.load_queue, (name,)).fetchone()
            if row is None:
                return None
            queue = QueueRow(*row)
            known = self._queues[name] = queue, queue.values()
            lone = self._lone_puts()
            count = sum(count for (id, _), count in lone.items() if id == queue.id) if lone else 0
            queue.put += count
            queue.delayed += count
        return known[0]

    def open(self, name: str) -> QueueRow | None:
        """Return a queue that is going to be changed; first forget what was kept long enough."""
        queue = self.look(name)
        if queue is not None and queue.kept:
            self._forget(queue)
        return queue

    def make(self, name: str) -> QueueRow:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self.open(name)
        if queue is None:
            self.run(SQL.create_queue, (name, self.now))
            queue = self.look(name)
            assert queue is not None
        return queue

    def save(self) -> None:
        """Write back what has changed in the rows of queues, with what lone puts have added."""
        if not self._queues:
            return
        lone = self._lone_puts()
        looked = set()
        for queue, before in self._queues.values():
            looked.add(queue.id)
            values = queue.values()
            if values != before:
                self.run(SQL.save_queue, (*values, queue.id))
        for (id, _), count in lone.items():
            if id not in looked:
                self.run(SQL.count_puts, {"queue": id, "count": count})
        changed = self._hours
        changed.update(lone)
        rows = [(queue, hour, count) for (queue, hour), count in changed.items() if count]
        if rows:
            self.run_many(SQL.count_hour, rows)
            fewer = [(queue, hour) for queue, hour, count in rows if count < 0]
            if fewer:
                self.run_many(SQL.drop_hour, fewer)
        self.run(SQL.balance)

    def _lone_puts(self) -> Counter[tuple[int, int]]:
        """Return, by queue and hour, how many messages the counters do not know of yet."""
        if self._uncounted is None:
            rows = self.run(SQL.uncounted)
            self._uncounted = Counter({(queue, hour): count for queue, hour, count in rows})
        return self._uncounted

    def count_hours(self, queue: QueueRow, dues: Iterable[int], *, gone: bool = False) -> None:
        """Count delayed and ready messages that came, or have `gone`, in the hours they are due."""
        counts = Counter([-(-due // HOUR) for due in dues])
        sign = -1 if gone else 1
        for hour, count in counts.items():
            self._hours[queue.id, hour] += sign * count

    def hours(self, queue: QueueRow) -> Counter[int]:
        """Return how many delayed and ready messages are due in each hour, rounded up."""
        found = Counter(dict(self.run(SQL.hours, (queue.id,))))
        for changes in (self._lone_puts(), self._hours):
            for (id, hour), count in changes.items():
                if id == queue.id:
                    found[hour] += count
        return found

    def next_seq(self, count: int) -> int:
        """Reserve `count` sequence numbers; return the one before the first."""
        if self._seq is None:
            self._seq = self.run(SQL.last_seq).fetchone()[0] or 0
        self._seq += count
        return self._seq - count

    # Messages.

    def locate(self, queue: QueueRow, ids: Sequence[str]) -> dict[str, Place]:
        """Return where messages stand. A lease that is over has been taken back before."""
        if len(ids) == 1:
            rows = self.run(SQL.locate_one, (queue.id, ids[0]))
        else:
            rows = self.run(SQL.locate, (queue.id, json_text(ids)))
        places = {row[0]: Place(*row) for row in rows}
        now = self.now
        lapsed = [p for p in places.values() if p.until is not None and p.until <= now]
        if lapsed:
            self.take_back(queue, lapsed)
            rows = self.run(SQL.locate, (queue.id, json_text([p.id for p in lapsed])))
            places.update((row[0], Place(*row)) for row in rows)
        return places

    def is_of(self, queue: QueueRow, place: Place, version: str | None) -> bool:
        """Tell whether a message is still of a version; of any, if it is `None`."""
        if version is None:
            return True
        row = self.run(SQL.find, {"queue": queue.id, "ids": json_text([place.id])}).fetchone()
        return as_message("", row, self.now).version == version

    def delay(self, queue: QueueRow, due: int, priority: int, seq: int) -> None:
        """Let a message that stands nowhere wait for its due moment."""
        rank = delayed_rank(due, priority)
        self.run(SQL.insert_pending, (queue.id, DELAYED, rank, seq))
        queue.delayed += 1
        self.count_hours(queue, (due,))

    def ready(self, queue: QueueRow, places: Iterable[Place]) -> None:
        """Let messages that stand nowhere be handed out next."""
        places = list(places)
        rows = [(queue.id, READY, ready_rank(p.due, p.priority), p.seq) for p in places]
        self.count_hours(queue, [p.due for p in places])
        self.run_many(SQL.insert_pending, rows)
        queue.ready += len(rows)

    def end(self, queue: QueueRow, seqs: Sequence[int], state: int) -> None:
        """Set messages aside that stand nowhere."""
        self.run_many(SQL.insert_aside, [(seq, queue.id, state, self.now) for seq in seqs])
        if state == DEAD:
            queue.dead += len(seqs)
        else:
            queue.kept += len(seqs)

    def leave_pending(self, queue: QueueRow, rows: Sequence[tuple[int, int, int]]) -> None:
        """Take messages out of delayed or ready, wherever they stand: (seq, due, priority)."""
        self.count_hours(queue, [due for _, due, _ in rows], gone=True)
        delayed = [(queue.id, DELAYED, delayed_rank(d, p), seq) for seq, d, p in rows]
        found = self.run_many(SQL.drop_pending, delayed).rowcount
        queue.delayed -= found
        if found < len(rows):
            ready = [(queue.id, READY, ready_rank(d, p), seq) for seq, d, p in rows]
            queue.ready -= self.run_many(SQL.drop_pending, ready).rowcount

    def leave_lease(self, queue: QueueRow, seqs: Sequence[int]) -> None:
        """Take messages from those who hold them."""
        self.run(SQL.drop_leases, (json_text(seqs),))
        queue.leased -= len(seqs)

    def delete(self, seqs: Sequence[int]) -> None:
        """Delete messages that stand nowhere any more."""
        if seqs:
            self.run(SQL.drop_messages, (json_text(seqs),))

    def failed(
        self, queue: QueueRow, place: Place, reason: str, moment: int, *, final: bool = False
    ) -> bool:
        """Count a failed attempt; return whether another one is left, else the message is dead."""
        attempt = place.attempt + 1
        (text,) = self.run(SQL.failures, (place.seq,)).fetchone()
        failure = Failure(attempt, moment, place.holder or "", reason[:REASON_LENGTH])
        failures = remember(as_failures(text) if text else (), failure)
        self.run(SQL.record_failure, (attempt, json_text(failures), place.seq))
        if final or attempt >= place.attempts:
            self.end(queue, [place.seq], DEAD)
            queue.died += 1
            return False
        return True

    def taken_aside(self, places: Sequence[Place], reason: str) -> None:
        """Note why messages that nobody held became dead letters; no attempt is counted."""
        seqs = json_text([place.seq for place in places])
        known = dict(self.run(SQL.failures_of, (seqs,)))
        rows = []
        for place in places:
            text = known.get(place.seq)
            failure = Failure(place.attempt, self.now, "", reason[:REASON_LENGTH])
            failures = remember(as_failures(text) if text else (), failure)
            rows.append((place.attempt, json_text(failures), place.seq))
        self.run_many(SQL.record_failure, rows)

    def take_back(self, queue: QueueRow, places: Sequence[Place]) -> None:
        """Take back messages whose lease is over: ready again, or dead."""
        self.leave_lease(queue, [place.seq for place in places])
        queue.lapsed += len(places)
        self.ready(
            queue,
            [p for p in places if p.until is not None and self.failed(queue, p, LAPSED, p.until)],
        )

    def _forget(self, queue: QueueRow) -> None:
        ends = (ACKED, self.now - queue.keep), (EXPIRED, self.now - max(queue.keep, EXPIRED_KEEP))
        for state, before in ends:
            rows = self.run(SQL.forgettable, (queue.id, state, before, FORGET)).fetchall()
            if rows:
                seqs = [seq for (seq,) in rows]
                self.run(SQL.drop_aside, (json_text(seqs),))
                self.delete(seqs)
                queue.kept -= len(seqs)
