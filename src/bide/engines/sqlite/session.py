"""One transaction: the queues it touches, and the places of the messages it names."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bide.engines.limiter import key_of
from bide.engines.sqlite.limits import Lines
from bide.engines.sqlite.successors import followed
from bide.engines.sqlite.tables import (
    ACKED,
    DEAD,
    DELAYED,
    EXPIRED,
    READY,
    SQL,
    LimitRow,
    MessageRow,
    Place,
    QueueRow,
    as_failures,
    json_text,
)
from bide.model.ended import ENDINGS, Ending, end_of
from bide.model.message import EXPIRED_KEEP, FORGET, LAPSED, REASON_LENGTH, Failure, remember
from bide.model.rank import delayed_rank, delayed_reach, ready_rank
from bide.model.replies import Died

HOUR = 3_600_000

COUNTED = 1_000
"""How many due messages are counted one by one before the counters of hours are asked."""

ByHour = defaultdict[int, Counter[int]]
"""How many messages are due in each hour, by queue."""

Waiting = tuple[int, int, int]
"""The place of a delayed or ready message follows from these: its seq, due and priority."""


class Session:
    """What the verbs of one batch share: the connection, the time, and the rows of queues."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.run = connection.execute
        self.run_many = connection.executemany
        self.now = int(now)
        self.exactly = now
        self._queues: dict[str, tuple[QueueRow, tuple[Any, ...]]] = {}
        self.ends: list[str] = []
        """The ends of messages that other processes may wait for."""
        self._lines: dict[int, Lines] = {}
        self._seq: int | None = None
        self._uncounted: ByHour | None = None
        self._hours: ByHour = defaultdict(Counter)

    # Queues.

    def look(self, name: str) -> QueueRow | None:
        """Return the row of a queue as it is, `None` when there is no such queue."""
        if name in self._queues:
            return self._queues[name][0]
        row = self.run(SQL.load_queue, (name,)).fetchone()
        if row is None:
            return None
        queue = QueueRow(*row)
        self._queues[name] = queue, queue.values()
        count = self._single_puts()[queue.id].total()
        queue.put += count
        queue.delayed += count
        return queue

    def open(self, name: str) -> QueueRow | None:
        """Return a queue that is going to be changed; first forget what was kept long enough."""
        queue = self.look(name)
        if queue is not None and queue.kept:
            self._forget(queue)
        if queue is not None and queue.ended:
            bounds = queue.id, self.now - queue.remembers, FORGET
            queue.ended -= self.run(SQL.forget_ends, bounds).rowcount
        return queue

    def make(self, name: str) -> QueueRow:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self.open(name)
        if queue is None:
            self.run(SQL.create_queue, (name, self.now))
            queue = self.look(name)
            assert queue is not None
        return queue

    def lines(self, queue: QueueRow) -> Lines:
        """Return the lines of a limited queue."""
        lines = self._lines.get(queue.id)
        if lines is None:
            found = self.run(SQL.load_limit, (queue.id,)).fetchone()
            row = LimitRow(*found) if found else LimitRow(queue=queue.id)
            lines = Lines(self, row, int(self.exactly * 1000))
            self._lines[queue.id] = lines
        lines.running = queue.leased
        return lines

    def drop_lines(self, queue: QueueRow) -> None:
        """Delete what a queue has because it was limited."""
        self._lines.pop(queue.id, None)
        self._empty(queue, "limit", "group", "line")

    def _empty(self, queue: QueueRow, *tables: str) -> None:
        for table in tables:
            self.run(f"DELETE FROM bide_{table} WHERE queue = ?", (queue.id,))

    def groups_of(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """Return the groups of messages."""
        return dict(self.run(SQL.groups_of, (json_text(seqs),)))

    def forget_queue(self, queue: QueueRow) -> None:
        """Delete the row of a queue that is empty."""
        self.drop_lines(queue)
        self._empty(queue, "due_hour", "pause", "forwarded", "ended")
        self.run(SQL.drop_queue, (queue.id,))
        del self._queues[queue.name]
        # A queue that is made next may get the same id.
        for counted in (self._hours, self._single_puts()):
            counted.pop(queue.id, None)

    def count_due(self, queue: QueueRow) -> int:
        """Count the delayed messages that are due.

        Either those or the ones that fall due later in this hour, whichever are fewer: the counters
        of hours tell the rest.
        """
        if not queue.delayed:
            return 0
        hour = self.now // HOUR + 1
        reach, hour_end = delayed_reach(self.now), delayed_reach(hour * HOUR)
        most = COUNTED
        while (due := self.count_between(queue, -1, reach, most)) == most:
            coming = self.count_between(queue, reach, hour_end, most)
            if coming < most:
                until = sum(count for each, count in self.hours(queue).items() if each <= hour)
                return until - queue.ready - coming
            most *= 4
        return due

    def count_between(self, queue: QueueRow, after: int, until: int, most: int = -1) -> int:
        """Count the delayed messages between two ranks; stop at `most` of them."""
        bounds = queue.id, after, until, most
        return int(self.run(SQL.count_delayed, bounds).fetchone()[0])

    def save(self) -> None:
        """Write back what has changed in the rows of queues, with what single puts have added."""
        if not self._queues:
            return
        for lines in self._lines.values():
            lines.save()
        single = self._single_puts()
        for queue, before in self._queues.values():
            if (values := queue.values()) != before:
                self.run(SQL.save_queue, (*values, queue.id))
        known = {queue.id for queue, _ in self._queues.values()}
        others = [(n.total(), n.total(), id) for id, n in single.items() if id not in known]
        self.run_many(SQL.count_puts, others)
        for id, hours in single.items():
            self._hours[id].update(hours)
        rows = [
            (id, hour, count) for id, hours in self._hours.items() for hour, count in hours.items()
            if count
        ]  # fmt: skip
        self.run_many(SQL.count_hour, rows)
        self.run_many(SQL.drop_hour, [row[:2] for row in rows if row[2] < 0])
        self.run(SQL.balance)

    def _single_puts(self) -> ByHour:
        """Return how many messages the counters do not know of yet."""
        if self._uncounted is None:
            self._uncounted = defaultdict(Counter)
            for queue, hour, count in self.run(SQL.uncounted):
                self._uncounted[queue][hour] = count
        return self._uncounted

    def count_hours(self, queue: QueueRow, dues: Sequence[int], *, gone: bool = False) -> None:
        """Count delayed and ready messages that came, or have `gone`, in the hours they are due."""
        hours = self._hours[queue.id]
        (hours.subtract if gone else hours.update)(-(-due // HOUR) for due in dues)

    def hours(self, queue: QueueRow) -> Counter[int]:
        """Return how many delayed and ready messages are due in each hour, rounded up."""
        found = Counter(dict(self.run(SQL.hours, (queue.id,))))
        for changes in (self._single_puts(), self._hours):
            found.update(changes[queue.id])
        return found

    def next_seq(self, count: int) -> int:
        """Reserve `count` sequence numbers; return the one before the first."""
        if self._seq is None:
            self._seq = self.run(SQL.last_seq).fetchone()[0] or 0
        self._seq += count
        return self._seq - count

    # Messages.

    def locate(self, queue: QueueRow, ids: Sequence[str]) -> dict[str, Place]:
        """Return the places of messages, after taking back leases that are over."""
        rows = self.run(SQL.locate, (queue.id, json_text(ids)))
        places = {row[0]: Place(*row) for row in rows}
        now = self.now
        lapsed = [p for p in places.values() if p.until is not None and p.until <= now]
        if lapsed:
            self.take_back(queue, lapsed)
            rows = self.run(SQL.locate, (queue.id, json_text([p.id for p in lapsed])))
            places.update((row[0], Place(*row)) for row in rows)
        return places

    def find(self, queue: QueueRow, id: str) -> MessageRow | None:
        """Return a whole message."""
        row = self.run(SQL.find, (queue.id, id)).fetchone()
        return None if row is None else MessageRow(*row)

    def version(self, queue: QueueRow, id: str) -> str | None:
        """Return the version of a message."""
        row = self.find(queue, id)
        return None if row is None else row.message("", self.now).version

    def delay(self, queue: QueueRow, rows: Sequence[Waiting]) -> None:
        """Let messages without a place wait until they are due."""
        self.run(SQL.delay, (json_text([seq for seq, _, _ in rows]),))
        queue.delayed += len(rows)
        self.count_hours(queue, [due for _, due, _ in rows])

    def ready(self, queue: QueueRow, places: Iterable[Place]) -> None:
        """Make messages without a place ready."""
        places = list(places)
        rows = [(queue.id, READY, ready_rank(p.due, p.priority), p.seq) for p in places]
        self.count_hours(queue, [p.due for p in places])
        self.run_many(SQL.insert_pending, rows)
        queue.ready += len(rows)
        if queue.limited and rows:
            groups = self.groups_of([place.seq for place in places])
            self.lines(queue).enter([(groups[seq], rank, seq) for _, _, rank, seq in rows])

    def end(self, queue: QueueRow, seqs: Sequence[int], state: int) -> None:
        """Set messages without a place aside."""
        self.run_many(SQL.insert_aside, [(seq, queue.id, state, self.now) for seq in seqs])
        if state == DEAD:
            queue.dead += len(seqs)
            queue.died += len(seqs)
        else:
            queue.kept += len(seqs)

    def expire(self, queue: QueueRow, seqs: Sequence[int]) -> None:
        """Set messages aside that are too late."""
        if seqs:
            self.remember_ends(queue, seqs, "expired", None)
            self.end(queue, seqs, EXPIRED)
            queue.expired += len(seqs)

    def leave_pending(self, queue: QueueRow, rows: Sequence[Waiting]) -> None:
        """Remove messages from delayed or ready, wherever they are."""
        self.count_hours(queue, [due for _, due, _ in rows], gone=True)
        delayed = [(queue.id, DELAYED, delayed_rank(d, p), seq) for seq, d, p in rows]
        found = self.run_many(SQL.drop_pending, delayed).rowcount
        queue.delayed -= found
        if found < len(rows):
            ready = [(queue.id, READY, ready_rank(d, p), seq) for seq, d, p in rows]
            queue.ready -= self.run_many(SQL.drop_pending, ready).rowcount
            if queue.limited:
                lines, groups = self.lines(queue), self.groups_of([seq for seq, _, _ in rows])
                for _, _, rank, seq in ready:
                    lines.leave(key_of(groups[seq]), rank, seq)

    def leave_lease(self, queue: QueueRow, seqs: Sequence[int]) -> None:
        """Take messages from those who hold them."""
        if queue.limited:
            self.lines(queue).stop(self.groups_of(seqs).values())
        self.run(SQL.drop_leases, (json_text(seqs),))
        queue.leased -= len(seqs)

    def delete(self, seqs: Sequence[int]) -> None:
        """Delete messages that have left their places."""
        if seqs:
            self.run(SQL.drop_messages, (json_text(seqs),))

    def remember_ends(
        self,
        queue: QueueRow,
        seqs: Sequence[int],
        how: Ending,
        by: str | None,
        results: Sequence[bytes | None] = (),
    ) -> None:
        """Remember how messages end, before they leave their places, if the queue does.

        Args:
            queue: of the messages.
            seqs: their sequence numbers.
            how: they end.
            by: who ends them, if no worker holds them.
            results: of each, if one has any.
        """
        if not (queue.remembers and seqs):
            return
        rows: Any = [(seq,) for seq in seqs]
        if results and queue.result_ttl:
            texts = [None if result is None else result.decode() for result in results]
            rows = list(zip(seqs, texts, strict=True))
        bounds = {
            "rows": json_text(rows), "how": ENDINGS.index(how), "now": self.now, "by": by,
            "history": bool(queue.history), "results": bool(queue.result_ttl),
        }  # fmt: skip
        queue.ended += self.run(SQL.remember_ends, bounds).rowcount
        if queue.result_ttl:  # a caller may wait for the result
            ids = self.run(SQL.ids, (json_text(seqs),))
            self.ends += [end_of(queue.name, id) for (id,) in ids]

    def failed(
        self, queue: QueueRow, place: Place, reason: str, moment: int, *, final: bool = False
    ) -> bool:
        """Count a failed attempt; return whether another one is left, else the message is dead."""
        attempt = place.attempt + 1
        kept = reason[:REASON_LENGTH]
        self._record(place, Failure(attempt, moment, place.holder or "", kept, place.since))
        if final or attempt >= place.attempts:
            self._die(queue, place, place.holder)
            return False
        return True

    def set_aside(self, queue: QueueRow, place: Place, reason: str, actor: str | None) -> None:
        """Make a message that no worker held a dead letter; no attempt is counted."""
        self._record(place, Failure(place.attempt, self.now, "", reason[:REASON_LENGTH]))
        self._die(queue, place, actor)

    def _die(self, queue: QueueRow, place: Place, by: str | None) -> None:
        self.remember_ends(queue, [place.seq], "dead", by)
        self.end(queue, [place.seq], DEAD)

    def _record(self, place: Place, failure: Failure) -> None:
        (text,) = self.run(SQL.failures, (place.seq,)).fetchone()
        failures = remember(as_failures(text) if text else (), failure)
        self.run(SQL.record_failure, (failure.attempt, json_text(failures), place.seq))

    def take_back(self, queue: QueueRow, places: Sequence[Place]) -> list[Died]:
        """Take back messages whose lease is over: ready again, or dead; return the dead ones."""
        self.leave_lease(queue, [place.seq for place in places])
        queue.lapsed += len(places)
        alive, died = [], []
        for place in places:
            assert place.until is not None
            if self.failed(queue, place, LAPSED, place.until):
                alive.append(place)
            else:
                died.append(Died(place.id, place.attempt + 1, place.holder or ""))
        self.ready(queue, alive)
        alive_again = followed(self, queue, places)
        return [one for one in died if one.id not in alive_again]

    def _forget(self, queue: QueueRow) -> None:
        ends = (ACKED, self.now - queue.keep), (EXPIRED, self.now - max(queue.keep, EXPIRED_KEEP))
        for state, before in ends:
            rows = self.run(SQL.forgettable, (queue.id, state, before, FORGET)).fetchall()
            if rows:
                seqs = [seq for (seq,) in rows]
                self.run(SQL.drop_aside, (json_text(seqs),))
                self.delete(seqs)
                queue.kept -= len(seqs)
