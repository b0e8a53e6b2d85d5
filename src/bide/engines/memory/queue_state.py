"""One queue of the memory engine: a table of records and its ordered sets."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise

import msgspec
from sortedcontainers import SortedDict, SortedList

from bide.engines.cursor import Phase, Position, goes_by_set, phases_of, position
from bide.engines.ended_pages import LOOKED_AT, EndPosition, EndSpan
from bide.engines.memory.group import Place
from bide.engines.memory.lines import MemoryLines
from bide.engines.memory.savepoint import Savepoint
from bide.engines.queue_row import QueueRow
from bide.engines.rules.change import Change, Facts, leased, ready
from bide.engines.rules.record import Record, matches
from bide.model.command_parts import Origin, Where
from bide.model.commands import Ack, Scan
from bide.model.ended import KEPT_ENDS, End, Ended, Ending, size_of_end
from bide.model.limits import MAX_FORWARDED, MAX_RETURNED
from bide.model.message import EXPIRED_KEEP, FORGET, STATES, State, stored_size
from bide.model.rank import EVERYTHING, delayed_reach
from bide.model.replies import PAUSES, ClosedGroup, Flow, Pause, Sizes


class MemoryQueue:
    """The records of one queue, and the sets of its states."""

    def __init__(self, row: QueueRow) -> None:
        self.row = row
        self.now = 0
        self.ends: deque[tuple[str, End]] = deque()
        """What is remembered of messages that have ended, by id, in this order."""
        self.last_end: dict[str, End] = {}
        """The last one of each id."""
        self.endings: SortedList[EndPosition] = SortedList()
        """The last ends in the order of a list."""
        self.rows: frozenset[tuple[str, str]] = frozenset()
        """The rows of outboxes that were executed: outbox and row."""
        self.returns: deque[tuple[int, str]] = deque()
        """The last returns to an earlier set: their numbers, and the ids."""
        self.records: dict[str, Record] = {}
        self.all: SortedDict[int, str] = SortedDict()
        """The ids of all, by sequence number: as they were put."""
        self.sets: dict[State, SortedList[Place]] = {state: SortedList() for state in STATES}
        self.lines: MemoryLines = MemoryLines(self.sets, row)
        self.paused: tuple[Pause, ...] = ()
        self.closings: dict[str, int] = {}
        """Until when groups are closed, by their names."""
        self.reopenings: SortedList[ClosedGroup] = SortedList()
        """The closed groups in the order in which they open."""
        self.seq = 0
        self.savepoint: Savepoint | None = None
        """What the queue was before the commands that run now, if one of them changes it."""

    def save_values(self) -> None:
        """Begin to save what commands change."""
        while len(self.returns) > MAX_RETURNED:
            self.returns.popleft()
        self.savepoint = self.lines.savepoint = Savepoint(
            row=copy.copy(self.row),
            seq=self.seq,
            pauses=self.paused,
            forwarded=self.rows,
            last_end=self.ends[-1] if self.ends else None,
            last_return=self.returns[-1] if self.returns else None,
            limits=copy.copy(self.lines.limits),
            groups=self.lines.groups,
        )

    def restore(self) -> None:
        """Bring back what the queue was before; an interrupted `restore` may be repeated."""
        saved = self.savepoint
        assert saved is not None
        self.row, self.seq = saved.row, saved.seq
        self.paused, self.rows = saved.pauses, saved.forwarded
        while self.ends and self.ends[-1] is not saved.last_end:
            self.ends.pop()
        self.last_end = dict(self.ends)
        self.endings = SortedList(EndPosition(end.moment, id) for id, end in self.last_end.items())
        while self.returns and self.returns[-1] is not saved.last_return:
            self.returns.pop()
        for id, record in saved.changed_records.items():
            if record is None:
                self.records.pop(id, None)
            else:
                self.records[id] = record
        for group, until in saved.changed_closings.items():
            if until is None:
                self.closings.pop(group, None)
            else:
                self.closings[group] = until
        self.reopenings = SortedList(
            ClosedGroup(until, group) for group, until in self.closings.items()
        )
        self.row.closed = len(self.closings)
        self.sort()
        self.lines.restore(saved, self.row)

    def sort(self) -> None:
        """Rebuild the ordered sets from the records."""
        records = self.records.values()
        self.all = SortedDict((record.seq, record.id) for record in records)
        for state in STATES:
            entries = (
                (record.rank, record.seq, record) for record in records if record.state == state
            )
            self.sets[state] = SortedList(entries)

    @property
    def facts(self) -> Facts:
        """What the rules need to know of the queue."""
        row = self.row
        return Facts(self.now, row.keep, row.history, row.result_ttl, self.closings.get)

    def next_seq(self) -> int:
        """Return the sequence number of a new record."""
        self.seq += 1
        return self.seq

    # Records that a command names.

    def load(self, ids: Sequence[str], *, bodies: bool) -> Mapping[str, Record]:
        """Return all records, by id: they are here."""
        return self.records

    def apply(self, changes: Sequence[Change]) -> None:
        """Store changes, and count what they count."""
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        """Store one change: the record, the counters, and how messages ended.

        A return to an earlier set is noted too: a scan in progress would miss the message.
        """
        before, after = change.before, change.after
        if before is None and after is not None:
            self._add(after)
        elif before is not None and after is None:
            self._remove(before)
        elif before is not None and after is not None and before is not after:
            self._replace(before, after, moves=change.moves)
        for name in change.counts:
            setattr(self.row, name, getattr(self.row, name) + 1)
        record = after or before
        assert record is not None or not change.counts
        if record is not None:
            for end in change.ends:
                self._remember(record.id, end)
            if change.returned:
                self.returns.append((self.last_return() + 1, record.id))

    def _remember(self, id: str, end: End) -> None:
        """Remember how a message ended."""
        self.ends.append((id, end))
        earlier_end = self.last_end.get(id)
        if earlier_end is not None:
            self.endings.remove(EndPosition(earlier_end.moment, id))
        self.last_end[id] = end
        self.endings.add(EndPosition(end.moment, id))

    def _replace(self, before: Record, after: Record, *, moves: bool) -> None:
        """Store a record instead of another one of the message, in the set of its state.

        Args:
            before: the record that is there.
            after: the other one, of the same sequence number.
            moves: whether it gets another place in the lines of a limited queue.
        """
        assert before.state is not None
        assert after.state is not None
        if self.savepoint is not None:
            self.savepoint.changed_records.setdefault(before.id, before)
        self.records[after.id] = after
        self.sets[before.state].remove((before.rank, before.seq, before))
        self.sets[after.state].add((after.rank, after.seq, after))
        self.row.move(before.state, after.state)
        if not self.row.limited:
            return
        if moves:
            self._leave_lines(before)
            self._enter_lines(after)
        elif before.state == "ready":
            self.lines.swap(before, after)

    def _enter_lines(self, record: Record) -> None:
        """Put a record that is ready into the line of its group."""
        if record.state == "ready":
            self.lines.enter(record)

    def _leave_lines(self, record: Record) -> None:
        """Take a record out of its line, or from those of its group that are leased."""
        if record.state == "ready":
            self.lines.leave(record)
        elif record.state == "leased":
            self.lines.stop(record)

    def _add(self, record: Record) -> None:
        """Store a record, and put it into the set of its state."""
        assert record.state is not None
        if self.savepoint is not None:
            self.savepoint.changed_records.setdefault(record.id, None)
        self.records[record.id] = record
        self.all[record.seq] = record.id
        self.sets[record.state].add((record.rank, record.seq, record))
        self.row.add(record.state, 1)
        if self.row.limited:
            self._enter_lines(record)

    def _remove(self, record: Record) -> None:
        """Delete a record, and remove it from the set of its state."""
        assert record.state is not None
        if self.savepoint is not None:
            self.savepoint.changed_records.setdefault(record.id, record)
        del self.records[record.id]
        del self.all[record.seq]
        self.sets[record.state].remove((record.rank, record.seq, record))
        self.row.add(record.state, -1)
        if self.row.limited:
            self._leave_lines(record)

    def last_return(self) -> int:
        """Return the number of the last return, 0 if there was none."""
        return self.returns[-1][0] if self.returns else 0

    def next_due(self, limit: int) -> list[tuple[int, int, str | None]]:
        """Return rank, sequence number and group of the first delayed records that are due."""
        first = self._upto("delayed", delayed_reach(self.now), limit)
        return [(record.rank, record.seq, record.group) for record in first]

    def ready_before(self, record: Record, rank: int) -> int:
        """Count the ready records before a rank; in a limited queue, those of the same group."""
        if self.row.limited:
            return self.lines.ahead(record, rank)
        return int(self.sets["ready"].bisect_left((rank, record.seq)))

    def try_ack_all(self, command: Ack) -> bool:
        """Return `False`: the rules decide one by one."""
        return False

    # Claims.

    def forget(self) -> None:
        """Delete records and ends that were remembered for long enough."""
        keep = self.row.keep
        if self.row.kept:
            acked = self._upto("acked", self.now - keep, FORGET)
            expired = self._upto("expired", self.now - max(keep, EXPIRED_KEEP), FORGET)
            for record in acked + expired:
                self._remove(record)
        for _ in range(min(len(self.ends), FORGET)):
            if self.ends[0][1].moment > self.now - self.row.ends_kept:
                break
            id, end = self.ends.popleft()
            if self.last_end[id] is end:
                del self.last_end[id]
                self.endings.remove(EndPosition(end.moment, id))
        if self.reopenings:
            expired_closings = self.reopenings.irange(maximum=ClosedGroup(self.now + 1, ""))
            for closed in list(islice(expired_closings, FORGET)):
                self.reopen_group(closed.group)

    def lapsed(self, limit: int) -> Iterable[Record]:
        """Return the first records whose lease has expired."""
        return self._upto("leased", self.now, limit)

    def promote(self, limit: int) -> None:
        """Make up to `limit` delayed records that are due ready."""
        due = self._upto("delayed", delayed_reach(self.now), limit)
        self.apply([Change(record, ready(record)) for record in due])

    def is_behind(self) -> bool:
        """Return whether due records are delayed."""
        return self.due() > 0

    def in_order(self, limit: int) -> Iterator[Record]:
        """Yield the next records to deliver, in order.

        In a limited queue, the caller must take each record out of its line (`lines.leave`) before
        it asks for the next one: which that is depends on the groups that were served.
        """
        if not self.row.limited:
            for _, _, record in islice(self.sets["ready"], limit):
                yield record
            return
        for _ in range(limit):
            if (head := self.lines.next()) is None:
                return
            yield head

    def lease(self, records: Sequence[Record], holder: str, until: int) -> None:
        """Lease records that `in_order` has yielded, by the token of the queue."""
        token = self.row.token
        self.apply(
            [Change(record, leased(record, holder, token, self.now, until)) for record in records]
        )

    def next_moments(self) -> list[int]:
        """Return when the first delayed record is due, and when the first lease expires."""
        due = [record.due for _, _, record in islice(self.sets["delayed"], 1)]
        return due + [until for until, _, _ in islice(self.sets["leased"], 1)]

    # Rules, states, and settings.

    def unheld(self, where: Where, limit: int | None = None) -> Iterable[Record]:
        """Return the first ready and delayed records that match a rule."""
        waiting = [*self.sets["ready"], *self._due_within("delayed", where)]
        return islice((record for _, _, record in waiting if matches(record, where)), limit)

    def count_unheld(self, where: Where) -> int:
        """Count the ready and delayed records that match a rule."""
        return len(list(self.unheld(where)))

    def held(self, where: Where, limit: int | None = None) -> Iterable[Record]:
        """Return the first leased records that match a rule, but those that are stopping."""
        leased = [record for _, _, record in self.sets["leased"]]
        matching = (
            record for record in leased if record.stopping is None and matches(record, where)
        )
        return islice(matching, limit)

    def count_held(self, where: Where) -> int:
        """Count the leased records that match a rule, but those that are stopping."""
        return len(list(self.held(where)))

    def purgeable(self, state: State, before: int | None, limit: int) -> Iterable[Record]:
        """Return the first records of a state that entered it before a time."""

        def fits(record: Record) -> bool:
            since = record.ended if record.ended is not None else record.due
            return record.state_at(self.now) == state and (before is None or since < before)

        if state == "leased":  # a worker holds those
            return []
        sets: tuple[State, ...] = ("ready", "delayed") if state == "ready" else (state,)
        due = Where(before=before)
        records = (entry[2] for name in sets for entry in self._due_within(name, due))
        return list(islice(filter(fits, records), limit))

    def pauses(self) -> list[Pause]:
        """Return the last pauses of the queue."""
        return list(self.paused)

    def begin_pause(self, until: int | None, actor: str | None) -> None:
        """Note the start of a pause, its end if it has one, and who asked for it."""
        self.paused = (*self.paused, Pause(self.now, until, actor))[-PAUSES:]

    def end_pause(self, until: int | None) -> None:
        """Note when the last pause ends; `None`: when the queue is resumed."""
        last = msgspec.structs.replace(self.paused[-1], until=until)
        self.paused = (*self.paused[:-1], last)

    def forwarded(self, origin: Origin) -> Iterable[str]:
        """Forget the rows of an outbox that were deleted there; return those that are known."""
        known = {row for outbox, row in self.rows if outbox == origin.outbox}
        self.rows -= {(origin.outbox, row) for row in known if row < origin.before}
        return [row for row in known if row >= origin.before]

    def remember_forwarded(self, outbox: str, rows: Sequence[str]) -> None:
        """Remember rows of an outbox, the last `MAX_FORWARDED` of the queue."""
        known = sorted(self.rows.union((outbox, row) for row in rows))
        self.rows = frozenset(known[-MAX_FORWARDED:])

    # Closed groups.

    def close_group(self, group: str, until: int) -> None:
        """Close a group, also one that is closed, until a time in Unix milliseconds."""
        self.reopen_group(group)
        self.closings[group] = until
        self.reopenings.add(ClosedGroup(until, group))
        self.row.closed = len(self.closings)

    def reopen_group(self, group: str) -> None:
        """Open a group, if it is closed."""
        until = self.closings.get(group)
        if self.savepoint is not None:
            self.savepoint.save_closing(group, until)
        if until is not None:
            del self.closings[group]
            self.reopenings.remove(ClosedGroup(until, group))
        self.row.closed = len(self.closings)

    def closed_groups(self, after: ClosedGroup, limit: int) -> list[ClosedGroup]:
        """Return the first closed groups after one, in the order in which they open."""
        following = self.reopenings.irange(minimum=after, inclusive=(False, False))
        return list(islice(following, limit))

    def count_closed(self) -> int:
        """Count the groups that are closed now."""
        return len(self.reopenings) - int(
            self.reopenings.bisect_left(ClosedGroup(self.now + 1, ""))
        )

    # Reading.

    def read(self, ids: Sequence[str]) -> Iterator[Record | None]:
        """Yield the records with some ids."""
        return map(self.records.get, ids)

    def walk(self, scan: Scan) -> Iterator[tuple[Record, str]]:
        """Yield records, each with the cursor of the page that begins behind it."""
        phases, begin = phases_of(scan), position(scan.cursor)
        if begin.since is None and goes_by_set(scan):
            begin = begin._replace(since=self.last_return())
        for index in range(begin.phase, len(phases)):
            after = begin if index == begin.phase else Position(index, since=begin.since)
            for rank, seq, record in self._phase(phases[index], after, scan.where):
                if matches(record, scan.where) and record.id.startswith(scan.prefix or ""):
                    yield record, str(Position(index, rank, seq, begin.since))

    def _phase(self, phase: Phase, after: Position, where: Where | None) -> Iterator[Place]:
        """Return the records of one phase of a scan, in its order, behind a position.

        Args:
            phase: of the scan.
            after: the last position that the caller has got.
            where: of the command; only some phases use it to find their records sooner.
        """
        low, since = (after.rank, after.seq + 1), after.since or 0
        if phase.state == "returned":  # as they were put: an order that no return changes
            ids = {id for number, id in self.returns if number > since and id in self.records}
            places = sorted((self.records[id].seq, id) for id in ids)
            return ((0, seq, self.records[id]) for seq, id in places if seq >= low[1])
        if phase.state == "rest" and self.last_return() <= since + MAX_RETURNED:
            return iter(())
        if phase.state is None or phase.state == "rest":  # all, as they were put
            return ((0, seq, self.records[self.all[seq]]) for seq in self.all.irange(low[1]))
        reach = delayed_reach(self.now) + 1
        if phase.due is False:
            low = max(low, (reach, -1))
        return self._due_within(phase.state, where, low, reach if phase.due else EVERYTHING)

    def _due_within(
        self, state: State, where: Where | None, low: tuple[int, ...] = (), high: int = EVERYTHING
    ) -> Iterator[Place]:
        """Yield the records of a state in their order, between two places.

        Args:
            state: of the records.
            where: the due times in it narrow the search among delayed records, which are in the
                order of these times.
            low: the first place: a rank, and perhaps a sequence number.
            high: the rank before which it ends.
        """
        if state == "delayed" and where is not None:
            low = max(low, (delayed_reach((where.after or 0) - 1) + 1,))
            if where.before is not None:
                high = min(high, delayed_reach(where.before - 1) + 1)
        places: Iterator[Place] = self.sets[state].irange(low, (high,), inclusive=(True, False))
        return places

    def ends_of(self, id: str) -> list[End]:
        """Return how messages with an id ended, the newest first."""
        since, fresh = self.now - self.row.ends_kept, self.now - self.row.result_ttl
        ends = [end for of, end in reversed(self.ends) if of == id and end.moment > since]
        return [
            end if end.moment > fresh else msgspec.structs.replace(end, result=None)
            for end in ends[:KEPT_ENDS]
        ]

    def last_ends(self, span: EndSpan, how: Ending | None) -> Iterator[Ended | EndPosition]:
        """Yield ids with their last ends, in order: those of a span, and of a way to end."""
        low = max(EndPosition(span.first), span.behind)
        for number, place in enumerate(self.endings.irange(low, inclusive=(False, False)), 1):
            if place.moment >= span.before:
                return
            end = self.last_end[place.id]
            if how in (None, end.how):
                yield Ended.of(place.id, end)
            if number == LOOKED_AT:
                yield place
                return

    def flow(self) -> Flow:
        """Return the counters of what has happened."""
        return self.row.flow()

    def due(self) -> int:
        """Count the delayed records that are due."""
        return self._due_by(self.now)

    def due_in(self, start: int, bucket: int, buckets: int) -> tuple[list[int], int]:
        """Count the records that are due after now, in each of some spans and after the last."""
        edges = [start + bucket * number for number in range(1, buckets + 1)]
        below = [self._due_by(self.now), *(self._due_by(edge - 1) for edge in edges)]
        return [after - before for before, after in pairwise(below)], self.row.delayed - below[-1]

    def oldest(self, due: int) -> int | None:
        """Return the earliest due time of due records."""
        waiting = [*self.sets["ready"], *self.sets["delayed"][: min(due, 1)]]
        return min((record.due for _, _, record in waiting), default=None)

    def recount(self, due: int) -> tuple[Sizes, int]:
        """Count the records in each set; all are in one."""
        delayed, ready, leased, dead, *_ = map(len, self.sets.values())
        return Sizes(delayed - due, ready + due, leased, dead), 0

    def stored(self) -> int:
        """Add up the bytes of the records, their successors, and the ends that are remembered."""
        records = self.records.values()
        successors = [record.successor for record in records if record.successor is not None]
        ends = sum(size_of_end(end) for _, end in self.ends)
        return ends + sum(map(stored_size, records)) + sum(map(stored_size, successors))

    def _upto(self, state: State, rank: int, limit: int) -> list[Record]:
        """Return the first records of a set up to a rank."""
        places = self.sets[state].irange(maximum=(rank + 1,))
        return [record for _, _, record in islice(places, limit)]

    def _due_by(self, moment: int) -> int:
        """Return the number of delayed records that are due at `moment`."""
        return int(self.sets["delayed"].bisect_left((delayed_reach(moment) + 1,)))
