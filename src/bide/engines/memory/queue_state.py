"""One queue of the memory engine: a table of records and its ordered sets."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec
from sortedcontainers import SortedList

from bide.engines.memory.lines import Lines
from bide.engines.queue_rules import QueueRules
from bide.engines.record import Record, matches
from bide.model.commands import Where
from bide.model.ended import KEPT_ENDS, End, Ending
from bide.model.message import EXPIRED_KEEP, Item, State
from bide.model.rank import PROMOTE, delayed_reach, ready_rank
from bide.model.replies import AHEAD, PAUSES, Flow, Pause

_WAITING: tuple[State, State] = ("ready", "delayed")
Entry = tuple[int, int, Record]  # rank, sequence number, record: unique, so records never compare


class QueueState(QueueRules):
    """The records of one queue, and the sets of its states."""

    def __init__(self, name: str, now: int) -> None:
        self.name = name
        self.paused = False
        self.pauses: list[Pause] = []
        self.keep = self.history = self.result_ttl = 0
        self.ends: deque[tuple[str, End]] = deque()
        """What is remembered of messages that have ended, by id, in this order."""
        self.token = now
        self.tally = dict.fromkeys(Flow.__struct_fields__, 0)
        self.forwarded: set[tuple[str, str]] = set()  # outbox and row
        self.records: dict[str, Record] = {}
        self.all: SortedList[tuple[int, Record]] = SortedList()
        """All, as they were put."""
        self.sets: dict[State, SortedList[Entry]] = {
            "delayed": SortedList(), "ready": SortedList(), "leased": SortedList(),
            "dead": SortedList(), "acked": SortedList(), "expired": SortedList(),
        }  # fmt: skip
        self.lines: Lines = Lines(self.sets)
        self._seq = 0

    # How records are kept.

    def store(self, item: Item, now: int) -> Record:
        """Add a new record."""
        self._seq += 1
        self.count("put")
        return self.add(Record.of(item, item.due(now), self._seq, now), item)

    def insert(self, record: Record) -> None:
        """Store a record that is in no set yet."""
        self.all.add((record.seq, record))

    def delete(self, record: Record) -> None:
        """Delete a record that is in no set."""
        self.all.remove((record.seq, record))

    def enter(self, record: Record) -> None:
        """Put a record into the set of its state."""
        assert record.state is not None
        self.sets[record.state].add((record.rank, record.seq, record))
        if record.state == "ready" and self.lines:
            self.lines.enter(record)
        elif record.state == "leased" and self.lines:
            self.lines.start(record)

    def leave(self, record: Record) -> None:
        """Remove a record from the set of its state."""
        assert record.state is not None
        self.sets[record.state].remove((record.rank, record.seq, record))
        if record.state == "ready" and self.lines:
            self.lines.leave(record)
        elif record.state == "leased" and self.lines:
            self.lines.stop(record)

    def lease(self, record: Record, token: int, holder: str, now: int, until: int) -> None:
        """Lease the record to `holder` until `until`."""
        self.move(record, "leased", until)
        record.token, record.holder, record.until = token, holder, until
        record.since, record.extended = now, 0

    def extend(self, record: Record, until: int) -> None:
        """Extend the lease of the record."""
        self.sets["leased"].remove((record.rank, record.seq, record))
        record.rank = record.until = until
        record.extended += 1
        self.sets["leased"].add((until, record.seq, record))

    def count(self, change: str) -> None:
        """Count a change."""
        self.tally[change] += 1

    # Settings, and what time does.

    def pause(self, paused: bool, now: int, actor: str | None) -> None:
        """Pause or resume claims; remember when, and who did it."""
        if paused and not self.paused:
            self.pauses = [*self.pauses, Pause(now, None, actor)][-PAUSES:]
        elif self.paused and not paused:
            over = msgspec.structs.replace(self.pauses[-1], until=now)
            self.pauses = [*self.pauses[:-1], over]
        self.paused = paused

    def promote(self, now: int, limit: int) -> None:
        """Make up to `limit` delayed records that are due ready."""
        for record in list(islice(self.upto("delayed", delayed_reach(now)), limit)):
            self.ready(record)

    def forget(self, now: int, limit: int) -> None:
        """Delete records that were remembered for long enough."""
        ends: tuple[tuple[State, int], ...] = (
            ("acked", now - self.keep),
            ("expired", now - max(self.keep, EXPIRED_KEEP)),
        )
        for state, before in ends:
            for record in list(islice(self.upto(state, before), limit)):
                self.remove(record)
        while self.ends and self.ends[0][1].moment <= now - max(self.history, self.result_ttl):
            self.ends.popleft()

    def remember_end(
        self, record: Record, how: Ending, by: str | None, now: int, result: bytes | None = None
    ) -> None:
        """Remember how a message ended, if the queue does."""
        if self.history or self.result_ttl:
            failures = record.failures if self.history else ()
            kept = result if self.result_ttl else None
            end = End(how, now, by, record.due, record.attempt, record.since, failures, kept)
            self.ends.append((record.id, end))

    def ends_of(self, id: str, now: int) -> list[End]:
        """Return how messages with an id ended, the newest first."""
        since, fresh = now - max(self.history, self.result_ttl), now - self.result_ttl
        found = [end for of, end in reversed(self.ends) if of == id and end.moment > since]
        return [
            end if end.moment > fresh else msgspec.structs.replace(end, result=None)
            for end in found[:KEPT_ENDS]
        ]

    # Reading.

    def upto(self, state: State, rank: int) -> Iterator[Record]:
        """Yield the records of a set up to a rank, in its order."""
        for entry in self.sets[state]:
            if entry[0] > rank:
                return
            yield entry[2]

    def due_by(self, moment: int) -> int:
        """Return the number of delayed records that are due at `moment`."""
        return int(self.sets["delayed"].bisect_left((delayed_reach(moment) + 1,)))

    def unheld(self, where: Where, now: int) -> list[Record]:
        """Return the ready and delayed records that match a rule."""
        waiting = (entry[2] for state in _WAITING for entry in self.sets[state])
        return [record for record in waiting if matches(record, where)]

    def purgeable(self, state: State, before: int | None, now: int, limit: int) -> list[Record]:
        """Return up to `limit` records of a state that entered it before a time."""

        def fits(record: Record) -> bool:
            since = record.ended if record.ended is not None else record.due
            return record.seen(now) == state and (before is None or since < before)

        if state == "leased":  # a worker holds those
            return []
        sets: tuple[State, ...] = ("ready", "delayed") if state == "ready" else (state,)
        records = (entry[2] for name in sets for entry in self.sets[name])
        return list(islice(filter(fits, records), limit))

    def ahead(self, record: Record, now: int) -> int:
        """Count the messages that are delivered before a ready record, up to `AHEAD` + 1.

        A claim makes the first delayed ones that are due ready, `PROMOTE` of them, and then takes
        those of the highest priority. So these are looked at. In a limited queue those of the same
        group count.
        """
        mine = ready_rank(record.due, record.priority), record.seq
        due = list(islice(self.upto("delayed", delayed_reach(now)), PROMOTE))
        if record.state == "delayed" and all(one is not record for one in due):
            return AHEAD + 1
        if self.lines:
            due = [one for one in due if one.group == record.group]
            before = self.lines.ahead(record, mine[0])
        else:
            before = self.sets["ready"].bisect_left(mine)
        before += sum((ready_rank(one.due, one.priority), one.seq) < mine for one in due)
        return min(before, AHEAD + 1)
