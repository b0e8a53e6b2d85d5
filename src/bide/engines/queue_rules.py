"""What happens to the messages of a queue, for engines that have them as records.

The memory engine has all messages of a queue as records, the SQLite engine those that a command
names. How each keeps them is described in `QueueRecords`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from msgspec import UNSET

from bide.engines.queue_records import QueueRecords
from bide.engines.record import Record
from bide.model import commands as cmd
from bide.model.command_parts import versions_of
from bide.model.message import LAPSED, Item, State
from bide.model.rank import PROMOTE, delayed_rank, rank_when_ready, ready_rank
from bide.model.replies import AHEAD, Affected, Died, Explained, Outcome, Outcomes

Change = Callable[[Any, Record, Any, int], Outcome | bool]
"""What a command does to a message: a function of `message_verbs`."""

PART = 100
"""How many records a command has in memory at a time: each may have much beside its body."""


def outcomes_of(found: list[Outcome], opens: Iterable[int] = ()) -> Outcomes:
    """Return the outcomes of a change, with when the first of its messages can be claimed.

    Args:
        found: one for each message.
        opens: when the limits of the queue allow a message again.
    """
    wakes = [
        o.due for o in found if o.done and o.state in ("delayed", "ready") and o.due is not None
    ]
    return Outcomes(found, min([*wakes, *opens], default=None))


class QueueRules(QueueRecords, Protocol):
    """The rules of one queue: what becomes of records, whatever keeps them."""

    # Commands.

    def change_each(
        self, command: Any, names: Sequence[str | cmd.Lease], change: Change
    ) -> Outcomes:
        """Change each message that has the version or the lease it must have.

        The outcomes say where the messages are now.
        """
        versions, freed = versions_of(command), False
        ids = [name if isinstance(name, str) else name.id for name in names]
        if not self.row.id:  # there is no such queue
            return Outcomes([Outcome(id, False) for id in ids])
        outcomes = []
        for number, (id, name) in enumerate(zip(ids, names, strict=True)):
            if number % PART == 0:
                self.load(ids[number : number + PART])
            token = None if isinstance(name, str) else name.token
            record = self.records.get(id)
            if record is None:
                outcomes.append(Outcome(id, False))
                continue
            record = self.settle_lapsed(record)
            was_leased = record.state == "leased"
            version = versions[number] if versions else None
            fits = token in (None, record.token) and self.is_still(record, version)
            done = fits and change(self, record, command, number)
            self.save(record)
            if was_leased and record.state != "leased":
                freed = True
                if record.successor is not None:
                    record, done = self.succeed(record), True
            if done and record.state in ("delayed", "ready"):
                self.remember_return(record)
            outcomes.append(record.outcome(done, self.now) if isinstance(done, bool) else done)
        return outcomes_of(outcomes, self.opens() if freed else ())

    def put_again(self, item: Item, command: cmd.Put) -> Outcome:
        """Put an item whose id exists, or that is not stored as a new message."""
        record = self.records.get(item.id)
        if record is None:
            return Outcome(item.id, False)
        policy, stored = command.on_conflict, False
        record = self.settle_lapsed(record)
        if record.state == "leased" and item.follows(policy, command.if_version):
            outcome = record.follow(item, self.now)
            self.save(record)
            return outcome
        if record.state in ("delayed", "ready", "dead") and self.is_still(
            record, command.if_version
        ):
            stored = policy == "replace" or (policy == "revive" and record.state == "dead")
        if stored:
            record = self.replace(record, item)
        return record.outcome(stored, self.now)

    def explain(self, id: str | None) -> Explained:
        """Return the state of a message, its place among others, and the pauses of the queue."""
        record = self.records.get(id or "")
        if record is None:
            return Explained(self.now, self.pauses())
        seen = record.message(self.row.name, self.now)
        waits = seen.state == "ready"
        return Explained(
            self.now, self.pauses(), seen.state, seen.due, seen.planned, seen.priority,
            seen.attempt, seen.attempts, seen.failures[-1] if seen.failures else None,
            self._ahead(record) if waits else None,
            seen.holder, record.since, record.extended, seen.until, seen.ended,
            successor=None if record.successor is None else record.successor.at,
            limited=self.lines.holds(record) if self.lines and waits else None,
        )  # fmt: skip

    def _ahead(self, record: Record) -> int:
        """Count the messages that are delivered before a ready record, up to `AHEAD` + 1.

        A claim makes the first delayed ones that are due ready, `PROMOTE` of them, and then takes
        those of the highest priority. So these are looked at. In a limited queue those of the same
        group count.
        """
        mine = ready_rank(record.due, record.priority), record.seq
        due = self.next_due(PROMOTE)
        if record.state == "delayed" and (record.rank, record.seq, record.group) not in due:
            return AHEAD + 1
        before = self.ready_before(record, mine[0])
        for rank, seq, group in due:
            counts = not self.lines or group == record.group
            before += counts and (rank_when_ready(rank), seq) < mine
        return min(before, AHEAD + 1)

    # Moving a record.

    def replace(self, old: Record, item: Item) -> Record:
        """Replace a record that no worker holds."""
        created, due = old.created, item.due(self.now, old.created)
        if created is None and item.latest is not None:  # from now on it is known
            created = self.now
        if old.state == "dead":
            self.row.revived += 1
        self.remove(old)
        record = self.add(Record.of(item, due, old.seq, created), item)
        self.remember_return(record)
        return record

    def succeed(self, old: Record) -> Record:
        """Let a successor take the place of a record whose lease has ended."""
        item, old.successor = old.successor, None
        assert item is not None
        assert item.at is not None
        self.save(old)
        if old.state == "dead":
            self.row.revived += 1
        if old.state in ("acked", None):  # it has left the queue
            self.row.put += 1
        if old.state is not None:
            self.remove(old)
        return self.add(Record.of(item, item.at, old.seq, None), item)

    def add(self, record: Record, item: Item) -> Record:
        """Add the new record of an item."""
        self.records[record.id] = record
        self.insert(record)
        if item.died is None:
            self.delay(record, record.due)
        else:
            self.end(record, "dead", item.died)
            self.row.died += 1
        return record

    def delay(self, record: Record, due: int) -> None:
        """Make the record delayed until `due`."""
        self.take(record)
        record.due = due
        record.ended = record.planned = None
        self.move(record, "delayed", delayed_rank(due, record.priority))

    def plan(self, record: Record, due: int) -> None:
        """Make the record delayed until `due`, and let it expire as its put asked, from then on."""
        if record.expires is not None and record.planned is not None:
            record.expires += record.due - record.planned
        record.asked = None
        self.delay(record, due)

    def edit(self, record: Record, edit: cmd.Edit, due: int | None) -> None:
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
            self.take(record)
        for name, value in options.items():
            setattr(record, name, value)
        if moves and state == "delayed":
            self.move(record, "delayed", delayed_rank(record.due, record.priority))
        elif moves and state == "ready":
            self.ready(record)

    def ready(self, record: Record) -> None:
        """Make the record ready."""
        self.move(record, "ready", ready_rank(record.due, record.priority))

    def end(self, record: Record, state: State, now: int) -> None:
        """Make the record dead, acked or expired."""
        self.move(record, state, now)
        record.ended = now

    def finish(self, record: Record, how: Literal["cancelled", "purged"], by: str | None) -> None:
        """Delete the record; unless it has ended before, count it, and remember how it ended."""
        if record.state not in ("acked", "expired"):
            self.remember_end(record, how, by)
            setattr(self.row, how, getattr(self.row, how) + 1)
        self.remove(record)

    def finish_all(
        self, found: Iterable[Record], how: Literal["cancelled", "purged"], by: str | None
    ) -> Affected:
        """Delete the first records of those that were found, as many as one command may."""
        count = 0
        for record in found:
            if count == cmd.BULK:
                return Affected(count, more=True)
            self.finish(record, how, by)
            count += 1
        return Affected(count)

    def remove(self, record: Record) -> None:
        """Delete the record."""
        self.take(record)
        del self.records[record.id]
        self.delete(record)

    def move(self, record: Record, state: State, rank: int) -> None:
        """Move the record to the set of a state."""
        self.take(record)
        record.state, record.rank = state, rank
        self.enter(record)
        self.row.add(state, 1)

    def take(self, record: Record) -> None:
        """Take the record out of its set, if it is in one."""
        if record.state is None:
            return
        self.leave(record)
        self.row.add(record.state, -1)
        if record.state == "leased":
            record.token = record.holder = record.until = record.since = None
            record.extended = 0
        record.state = None

    # Failures, and leases that expire.

    def failed(self, record: Record, reason: str, moment: int, *, final: bool = False) -> bool:
        """Count a failed attempt; return whether one is left. If not, the record is dead."""
        record.attempt += 1
        record.fail(reason, moment)
        if final or record.attempt >= record.attempts:
            record.since = None  # the last failure has it
            self.die(record, record.holder or "")
            return False
        return True

    def die(self, record: Record, by: str | None) -> None:
        """Make a record a dead letter."""
        self.remember_end(record, "dead", by)
        self.end(record, "dead", self.now)
        self.row.died += 1

    def settle_lapsed(self, record: Record) -> Record:
        """End the lease of the record if it has expired; return what has its place now."""
        if record.state == "leased" and record.until is not None and record.until <= self.now:
            self.row.lapsed += 1
            if self.failed(record, LAPSED, record.until):
                self.ready(record)
            self.save(record)
            if record.successor is not None:
                record = self.succeed(record)
            if record.state != "dead":
                self.remember_return(record)
        return record

    def collect_lapsed(self, lapsed: Iterable[Record]) -> list[Died]:
        """End expired leases; return the records that are dead now."""
        died = []
        for record in lapsed:
            holder = record.holder or ""
            if self.settle_lapsed(record).state == "dead":
                died.append(Died(record.id, record.attempt, holder))
        return died

    def expire(self, record: Record) -> None:
        """Set a record aside that is too late."""
        self.remember_end(record, "expired", None)
        self.end(record, "expired", self.now)
        self.row.expired += 1

    def opens(self) -> list[int]:
        """Return when a limited queue may be claimed from again after the end of a lease."""
        opens = self.lines.opens() if self.lines and not self.row.paused else None
        if opens is None:
            return []
        return [-(-opens // 1000) if opens > self.lines.now else self.now]
