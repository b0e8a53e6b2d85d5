"""One queue of the memory engine: a table of records and its ordered sets."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import msgspec
from msgspec import UNSET
from sortedcontainers import SortedList

from bide.engines.memory.lines import Lines
from bide.engines.memory.record import Record, matches
from bide.model.commands import Configure, Edit, Where
from bide.model.ended import KEPT_ENDS, End, Ending
from bide.model.message import EXPIRED_KEEP, LAPSED, REASON_LENGTH, Failure, Item, State, remember
from bide.model.rank import delayed_rank, delayed_reach, ready_rank
from bide.model.replies import PAUSES, Died, Flow, Pause
from bide.model.times import LIMITS

_WAITING: tuple[State, State] = ("ready", "delayed")
Entry = tuple[int, int, Record]  # rank, sequence number, record: unique, so records never compare


class QueueState:
    """The records of one queue, and the sets of its states."""

    def __init__(self, name: str, now: int) -> None:
        self.name = name
        self.paused = False
        self.pauses: list[Pause] = []
        self.keep = self.history = self.result_ttl = 0
        self.ends: deque[tuple[str, End]] = deque()
        """What is remembered of messages that have ended, by id, in this order."""
        self.lines = Lines()
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
        self._seq = 0

    # Moving a record.

    def store(self, item: Item, now: int) -> Record:
        """Add a new record."""
        self._seq += 1
        record = Record.of(item, item.due(now), self._seq, now)
        self.tally["put"] += 1
        self._place(record, item)
        return record

    def replace(self, old: Record, item: Item, now: int) -> Record | None:
        """Replace a record that no worker holds; `None` if one holds it."""
        if old.state not in ("delayed", "ready", "dead"):
            return None
        created, due = old.created, item.due(now, old.created)
        if created is None and item.latest is not None:  # from now on it is known
            created = now
        if old.state == "dead":
            self.tally["revived"] += 1
        self.remove(old)
        record = Record.of(item, due, old.seq, created)
        self._place(record, item)
        return record

    def succeed(self, old: Record) -> Record:
        """Let a successor take the place of a record whose lease has ended."""
        item = old.successor
        assert item is not None
        assert item.at is not None
        if old.state == "dead":
            self.tally["revived"] += 1
        if old.state in ("acked", None):  # it has left the queue
            self.tally["put"] += 1
        if old.state is not None:
            self.remove(old)
        record = Record.of(item, item.at, old.seq, None)
        self._place(record, item)
        return record

    def _place(self, record: Record, item: Item) -> None:
        self.records[record.id] = record
        self.all.add((record.seq, record))
        if item.died is None:
            self.delay(record, record.due)
        else:
            self.end(record, "dead", item.died)
            self.tally["died"] += 1

    def delay(self, record: Record, due: int) -> None:
        """Make the record delayed until `due`."""
        record.due = due
        record.ended = record.planned = None
        self._move(record, "delayed", delayed_rank(due, record.priority))

    def plan(self, record: Record, due: int) -> None:
        """Make the record delayed until `due`, and let it expire as its put asked, from then on."""
        if record.expires is not None and record.planned is not None:
            record.expires += record.due - record.planned
        record.asked = None
        self.delay(record, due)

    def edit(self, record: Record, edit: Edit, due: int | None) -> None:
        """Change what a command names; with a due time, plan the record again."""
        if due is not None:
            self.plan(record, due)
        if edit.data is not UNSET:
            record.data, record.json = edit.data, edit.json
        options = edit.options
        if options.get("expires") is not None and record.planned is not None:
            options["expires"] -= record.due - record.planned
        state = record.state
        moves = any(getattr(record, name) != options.get(name, getattr(record, name))
                    for name in ("priority", "group"))  # fmt: skip
        if moves and state in ("delayed", "ready"):
            self._leave(record)
        for name, value in options.items():
            setattr(record, name, value)
        if moves and state == "delayed":
            self._move(record, "delayed", delayed_rank(record.due, record.priority))
        elif moves and state == "ready":
            self.ready(record)

    def ready(self, record: Record) -> None:
        """Make the record ready."""
        self._move(record, "ready", ready_rank(record.due, record.priority))

    def lease(self, record: Record, token: int, holder: str, now: int, until: int) -> None:
        """Lease the record to `holder` until `until`."""
        self._move(record, "leased", until)
        record.token, record.holder, record.until = token, holder, until
        record.since, record.extended = now, 0

    def extend(self, record: Record, until: int) -> None:
        """Extend the lease of the record."""
        self.sets["leased"].remove((record.rank, record.seq, record))
        record.rank = record.until = until
        record.extended += 1
        self.sets["leased"].add((until, record.seq, record))

    def end(self, record: Record, state: State, now: int) -> None:
        """Make the record dead, acked or expired."""
        self._move(record, state, now)
        record.ended = now

    def finish(
        self, record: Record, how: Literal["cancelled", "purged"], by: str | None, now: int
    ) -> None:
        """Delete the record, count it, and remember how it ended."""
        self.remember_end(record, how, by, now)
        self.remove(record)
        self.tally[how] += 1

    def remove(self, record: Record) -> None:
        """Delete the record."""
        self._leave(record)
        del self.records[record.id]
        self.all.remove((record.seq, record))

    def _move(self, record: Record, state: State, rank: int) -> None:
        self._leave(record)
        record.state, record.rank = state, rank
        self.sets[state].add((rank, record.seq, record))
        if state == "ready" and self.lines:
            self.lines.enter(record)
        elif state == "leased" and self.lines:
            self.lines.start(record)

    def _leave(self, record: Record) -> None:
        if record.state is None:
            return
        self.sets[record.state].remove((record.rank, record.seq, record))
        if record.state == "ready":
            if self.lines:
                self.lines.leave(record)
        elif record.state == "leased":
            if self.lines:
                self.lines.stop(record)
            record.token = record.holder = record.until = record.since = None
            record.extended = 0
        record.state = None

    # Rules that several commands share.

    def pause(self, paused: bool, now: int, actor: str | None) -> None:
        """Pause or resume claims; remember when, and who did it."""
        if paused and not self.paused:
            self.pauses = [*self.pauses, Pause(now, None, actor)][-PAUSES:]
        elif self.paused and not paused:
            over = msgspec.structs.replace(self.pauses[-1], until=now)
            self.pauses = [*self.pauses[:-1], over]
        self.paused = paused

    def limit(self, command: Configure) -> bool:
        """Change the limits that are given; return whether one has changed."""
        given = {name: value for name in LIMITS if (value := getattr(command, name)) is not None}
        ready, leased = ([r for _, _, r in self.sets[state]] for state in ("ready", "leased"))
        return bool(given) and self.lines.configure(given, ready, leased)

    def failed(
        self, record: Record, reason: str, moment: int, now: int, *, final: bool = False
    ) -> bool:
        """Count a failed attempt; return whether one is left. If not, the record is dead."""
        record.attempt += 1
        holder = record.holder or ""
        kept = reason[:REASON_LENGTH]
        failure = Failure(record.attempt, moment, holder, kept, record.since)
        record.failures = remember(record.failures, failure)
        if final or record.attempt >= record.attempts:
            record.since = None  # the last failure tells of the last attempt
            self._die(record, holder, now)
            return False
        return True

    def set_aside(self, record: Record, reason: str, now: int, actor: str | None) -> None:
        """Make a record that no worker holds a dead letter; count no attempt."""
        failure = Failure(record.attempt, now, "", reason[:REASON_LENGTH])
        record.failures = remember(record.failures, failure)
        self._die(record, actor, now)

    def _die(self, record: Record, by: str | None, now: int) -> None:
        self.remember_end(record, "dead", by, now)
        self.end(record, "dead", now)
        self.tally["died"] += 1

    def settle_lapsed(self, record: Record, now: int) -> Record:
        """End the lease of the record if it has expired; return what has its place now."""
        if record.state == "leased" and record.until is not None and record.until <= now:
            self.tally["lapsed"] += 1
            if self.failed(record, LAPSED, record.until, now):
                self.ready(record)
            if record.successor is not None:
                return self.succeed(record)
        return record

    def collect_lapsed(self, now: int, limit: int) -> list[Died]:
        """End up to `limit` expired leases; return the records that are dead now."""
        died = []
        for record in list(islice(self.upto("leased", now), limit)):
            holder = record.holder or ""
            if self.settle_lapsed(record, now).state == "dead":
                died.append(Died(record.id, record.attempt, holder))
        return died

    def expired(self, record: Record, now: int) -> bool:
        """Expire a record that is too late; return whether it was."""
        if record.expires is None or now <= record.due + record.expires:
            return False
        self.remember_end(record, "expired", None, now)
        self.end(record, "expired", now)
        self.tally["expired"] += 1
        return True

    def promote(self, now: int, limit: int) -> None:
        """Make up to `limit` delayed records that are due ready."""
        for record in list(islice(self.upto("delayed", delayed_reach(now)), limit)):
            self.ready(record)

    def opens(self, now: int) -> list[int]:
        """Return when a limited queue may be claimed from again after the end of a lease."""
        opens = self.lines.opens() if self.lines and not self.paused else None
        if opens is None:
            return []
        return [-(-opens // 1000) if opens > self.lines.now else now]

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
