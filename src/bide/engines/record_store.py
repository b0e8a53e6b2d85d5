"""What each command does to a store, for engines that have messages as records."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from bide.engines import message_verbs
from bide.engines.cursor import Budget
from bide.engines.origins import executed_once
from bide.engines.queue_rules import QueueRules
from bide.engines.record import Record
from bide.engines.repetition import Held, Kept, NotKept
from bide.model import commands as cmd
from bide.model import replies
from bide.model.ended import within_budget
from bide.model.message import Message, size_of
from bide.model.rank import PROMOTE, forecast_start
from bide.model.times import LIMITS

Q = TypeVar("Q", bound=QueueRules)


class RecordStore(Protocol[Q]):
    """Executes commands on the queues of a store: each by the method of its name.

    Those that have none do something to each message that they name: see `message_verbs`.
    """

    exactly: float
    """The time in milliseconds, with fractions."""

    # Queues.

    def look(self, name: str) -> Q:
        """Return a queue as it is; an empty one with the id 0 if there is none."""

    def open(self, name: str) -> Q:
        """Return a queue that is going to be changed; first forget what was kept long enough."""
        queue = self.look(name)
        queue.forget()
        return queue

    def make(self, name: str) -> Q:
        """Return a queue that is going to be changed, made if it did not exist."""

    def drop(self, queue: Q) -> None:
        """Delete a queue that has no records."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues, sorted."""

    # Commands.

    def execute_one(self, command: Any) -> replies.Reply:
        """Execute a command; skip messages whose outbox rows its queue remembers."""
        if (origin := getattr(command, "origin", None)) is None:
            return self._verb(command)
        known = set(self.look(command.queue).forwarded(origin))
        reply, done = executed_once(command, origin, known, self._verb)
        if done:  # a put may have made the queue
            self.look(command.queue).remember_forwarded(origin.outbox, done)
        return reply

    def answer_again(self, queue: str, kept: Kept) -> replies.Reply:
        """Return a remembered answer; of a claim with the messages that it still holds."""
        assert not isinstance(kept, NotKept)
        if not isinstance(kept, Held):
            return kept
        state, reply = self.look(queue), kept.reply
        messages: list[Message] = []
        freed: list[int] = []
        for place, record in enumerate(state.read(kept.ids)):
            if record is not None and record.state == "leased" and record.token == reply.token:
                messages.append(record.message(queue, state.now))
                freed += reply.freed[place : place + 1]
        return msgspec.structs.replace(reply, messages=messages, freed=freed)

    def _verb(self, command: Any) -> replies.Reply:
        name = type(command).__name__.lower()
        verb: Callable[[Any], replies.Reply] | None = getattr(self, name, None)
        if verb is not None:
            return verb(command)
        queue, names = self.open(command.queue), getattr(command, command.named_by)
        return queue.change_each(command, names, getattr(message_verbs, name))

    def put(self, command: cmd.Put) -> replies.Reply:
        """Store messages."""

    def cancel(self, command: cmd.Cancel) -> replies.Outcomes | replies.Affected:
        """Cancel messages by id or by a rule."""
        if command.where is None:
            return self.open(command.queue).change_each(command, command.ids, message_verbs.cancel)
        if command.dry_run:
            return replies.Affected(self.look(command.queue).count_unheld(command.where))
        queue = self.open(command.queue)
        found = queue.unheld(command.where, cmd.BULK + 1)
        return queue.finish_all(found, "cancelled", command.actor)

    def purge(self, command: cmd.Purge) -> replies.Outcomes | replies.Affected:
        """Delete dead letters by id, or messages of a state; a worker holds leased ones."""
        queue = self.open(command.queue)
        if command.ids is not None:
            return queue.change_each(command, command.ids, message_verbs.purge)
        found = queue.purgeable(command.state, command.before, cmd.BULK + 1)
        return queue.finish_all(found, "purged", command.actor)

    def bury(self, command: cmd.Bury) -> replies.Outcomes:
        """Make dead letters of messages: by lease, then by id."""
        queue = self.open(command.queue)
        held = queue.change_each(command, command.leases, message_verbs.bury)
        unheld = queue.change_each(command, command.ids, message_verbs.set_aside)
        return replies.Outcomes(held.outcomes + unheld.outcomes, held.wake)

    def claim(self, command: cmd.Claim) -> replies.Claimed:
        """Lease up to `count` messages in the order of delivery, no more than the reply holds.

        Messages that are too late are set aside as expired. A claim examines `reach` messages at
        most, so that many expired ones do not block other callers for long.
        """
        queue = self.open(command.queue)
        row, lines, now, count = queue.row, queue.lines, queue.now, command.count
        if row.paused:
            return replies.Claimed([], 0, now)
        reach, limited = max(PROMOTE, count), bool(lines)
        if limited:
            lines.forget()
        died = queue.collect_lapsed(queue.lapsed(reach))
        queue.promote(reach)
        if limited and command.slots is not None:
            count = min(count, command.slots)
        if limited and count and lines.open and queue.is_behind():
            queue.look_ahead()
        budget = Budget(command.max_bytes)
        taken: list[Record] = []
        late: list[Record] = []
        freed: list[int] = []
        records = queue.in_order(reach)
        while len(taken) < count and (record := next(records, None)) is not None:
            is_late = record.expires is not None and now > record.due + record.expires
            if not is_late and not budget.takes(size_of(record)):
                break
            (late if is_late else taken).append(record)
            if limited:
                freed += [] if is_late else [lines.freed_at(record)]
                lines.leave(record, leased=not is_late)
        for record in late:
            queue.expire(record)
        if taken:
            row.token += 1
            queue.lease(taken, command.holder, now + command.lease)
        # In a limited queue all that is due goes into a line before its turn can come.
        behind = limited and queue.is_behind()
        if not taken:
            return replies.Claimed([], 0, now, self._next_claim(queue), died, behind=behind)
        messages = [record.message(row.name, now) for record in taken]
        return replies.Claimed(
            messages, row.token, now, None, died, row.result_ttl > 0, freed, behind
        )

    def _next_claim(self, queue: Q) -> float | None:
        """Return in how many milliseconds there is something to claim or to collect."""
        moments: list[float] = [*queue.next_moments()]
        if queue.lines:
            opens = queue.lines.opens()
            moments += [opens / 1000] if opens is not None else []
        elif queue.row.ready:
            return 0
        return max(0, min(moments) - self.exactly) if moments else None

    def configure(self, command: cmd.Configure) -> replies.Settings:
        """Change the settings that are given."""
        queue = self.make(command.queue)
        row = queue.row
        resumed = bool(row.paused) and command.paused is False
        if resumed:
            queue.resume()
        if command.paused and not row.paused:
            queue.pause(command.actor)
        for name in ("paused", "keep", "history", "result_ttl"):
            if (value := getattr(command, name)) is not None:
                setattr(row, name, int(value))
        wake = queue.now if queue.lines.configure(command) or resumed else None
        limits = (getattr(queue.lines.limits, name) for name in LIMITS)
        return replies.Settings(
            bool(row.paused), row.keep, wake, row.history, row.result_ttl, *limits
        )

    def delete(self, command: cmd.Delete) -> replies.Deleted:
        """Delete a queue if it is empty."""
        queue = self.open(command.queue)
        sizes = queue.row.sizes(queue.due())
        if not queue.row.id or sizes != replies.Sizes() or queue.row.kept:
            return replies.Deleted(False, sizes, queue.row.kept)
        self.drop(queue)
        return replies.Deleted(True)

    # Commands that change nothing.

    def find(self, command: cmd.Find) -> replies.Found:
        """Return messages by id, as many as the budget allows."""
        queue, budget = self.look(command.queue), Budget(command.max_bytes)
        found: list[Message | None] = []
        for record in queue.read(command.ids):
            if record is not None and not budget.takes(size_of(record)):
                break
            found.append(None if record is None else record.message(command.queue, queue.now))
        return replies.Found(found)

    def scan(self, command: cmd.Scan) -> replies.Page:
        """Return a page of messages, and the cursor of the next."""
        queue, budget = self.look(command.queue), Budget(command.max_bytes)
        found: list[Message] = []
        more = None
        for record, cursor in queue.walk(command):
            if not budget.takes(size_of(record)):
                break
            found.append(record.message(command.queue, queue.now))
            more = cursor
            if len(found) == command.limit:
                break
        else:
            more = None
        return replies.Page(found, more)

    def history(self, command: cmd.History) -> replies.Ends:
        """Return how messages with an id have ended."""
        queue = self.look(command.queue)
        queue.load([command.id])
        record = queue.records.get(command.id)
        state = None if record is None else record.seen(queue.now)
        return replies.Ends(state, within_budget(queue.ends_of(command.id), command.max_bytes))

    def explain(self, command: cmd.Explain) -> replies.Explained:
        """Return the state of a message, its place among others, and the pauses of its queue."""
        queue = self.look(command.queue)
        queue.load([] if command.id is None else [command.id])
        return queue.explain(command.id)

    def count(self, command: cmd.Count) -> replies.Counts:
        """Return the number of messages in each state, and the settings."""
        queue = self.look(command.queue)
        row, due = queue.row, queue.due()
        recount, strays = queue.recount(due) if command.recount else (None, None)
        return replies.Counts(
            row.sizes(due), row.flow(), row.kept, bool(row.paused), row.keep, row.history,
            row.result_ttl, oldest=queue.oldest(due), recount=recount, strays=strays,
            stored=queue.stored() if command.stored else None,
            **{name: getattr(queue.lines.limits, name) for name in LIMITS},
        )  # fmt: skip

    def forecast(self, command: cmd.Forecast) -> replies.Forecasted:
        """Count what falls due in each bucket."""
        queue = self.look(command.queue)
        start = forecast_start(queue.now, command.bucket)
        counts, later = queue.due_in(start, command.bucket, command.buckets)
        waiting = queue.row.delayed + queue.row.ready
        return replies.Forecasted(start, waiting - sum(counts) - later, counts, later)

    def queues(self, command: cmd.Queues) -> replies.Names:
        """Return the names of the queues."""
        return replies.Names(self.names(command.queue))
