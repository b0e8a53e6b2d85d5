"""The memory engine: the queue in this process, gone when it exits.

It is the specification of all other engines: what it answers, they must answer, and the random
scripts of the conformance suite hold them to it. So it is written to be read. Each queue is a table
of records and a few ordered sets; every command moves records between them.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from bide.engines.cursor import position
from bide.engines.memory import reading
from bide.engines.memory.claim import claim
from bide.engines.memory.queue_state import QueueState
from bide.engines.memory.record import Record
from bide.engines.origins import executed_once
from bide.engines.port import Capabilities, Engine, Notifier
from bide.model import commands as cmd
from bide.model.limits import MAX_FORWARDED
from bide.model.message import FORGET
from bide.model.replies import (
    Affected,
    Claimed,
    Deleted,
    Names,
    Outcome,
    Outcomes,
    Reply,
    Settings,
    Sizes,
)
from bide.model.times import LIMITS
from bide.model.versions import versions_of

__all__ = ["MemoryEngine"]


Change = Callable[[Record, int], Outcome | bool]
"""Changes a record, the one of a number in its command. True: its outcome tells where it is now;
False: it may not be changed."""


class MemoryEngine:
    """Executes commands on queues that live in this process."""

    capabilities = Capabilities(durable=False, shared=False, ids_ordered=False)

    def __init__(self) -> None:
        self._states: dict[str, QueueState] = {}
        self._exactly = 0.0  # the time of the batch, with fractions of a millisecond
        self._verbs = {kind: self._verb(kind.__name__.lower()) for kind in get_args(cmd.Command)}

    def _verb(self, name: str) -> Callable[[Any, int], Reply]:
        """Return what executes the commands of a kind: a method here, or a function that reads."""
        if read := getattr(reading, name, None):
            return lambda command, now: read(self._read(command.queue), command, now)
        verb: Callable[[Any, int], Reply] = getattr(self, f"_{name}")
        return verb

    def execute(self, commands: Sequence[cmd.Command], now: int | None = None) -> list[Reply]:
        """Execute the commands in order. Invalid ones are refused before anything is changed."""
        self._exactly = time.time_ns() / 1e6 if now is None else now
        moment = int(self._exactly)
        for command in commands:
            if isinstance(command, cmd.Scan):
                position(command.cursor)
        return [self._execute(command, moment) for command in commands]

    def _execute(self, command: Any, now: int) -> Reply:
        verb = self._verbs[type(command)]
        if (origin := getattr(command, "origin", None)) is None:
            return verb(command, now)
        # It comes from an outbox: not for messages whose rows the queue remembers.
        known = self._queue(command.queue, now).forwarded
        known -= {row for row in known if row[0] == origin.outbox and row[1] < origin.before}
        mine = {row for outbox, row in known if outbox == origin.outbox}
        reply, done = executed_once(command, origin, mine, lambda left: verb(left, now))
        known = self._queue(command.queue, now).forwarded  # a put may have made the queue
        known.update((origin.outbox, row) for row in done)
        known -= set(sorted(known)[:-MAX_FORWARDED])
        return reply

    def reader(self) -> Engine | None:
        """Return `None`: reads need no second engine."""
        return None

    def notifier(self) -> Notifier | None:
        """Return `None`: no other process uses this store."""
        return None

    def close(self) -> None:
        """Delete all queues."""
        self._states.clear()

    # A command that changes a queue first forgets messages that were remembered long enough.

    def _queue(self, name: str, now: int) -> QueueState:
        queue = self._read(name)
        queue.forget(now, FORGET)
        return queue

    def _put(self, command: cmd.Put, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)
        self._states[command.queue] = queue
        outcomes, wake, policy = [], None, command.on_conflict
        for item in command.items:
            record = queue.records.get(item.id)
            stored: Record | None = None
            if record is None and (policy == "revive" or command.if_version):
                outcomes.append(Outcome(item.id, False))
                continue
            if record is None:
                record = stored = queue.store(item, now)
            else:
                record = queue.settle_lapsed(record, now)
                if record.state == "leased" and item.follows(policy, command.if_version):
                    outcomes.append(record.follow(item, now))
                    continue
                if record.is_still(command.if_version) and (
                    policy == "replace" or (policy == "revive" and record.state == "dead")
                ):
                    stored = queue.replace(record, item, now)
            if stored is not None and stored.state != "dead":
                wake = stored.due if wake is None else min(wake, stored.due)
            outcomes.append((stored or record).outcome(stored is not None, now))
        return Outcomes(outcomes, wake)

    def _cancel(self, command: cmd.Cancel, now: int) -> Outcomes | Affected:
        if command.where is not None and command.dry_run:
            return Affected(len(self._read(command.queue).unheld(command.where, now)))
        queue = self._queue(command.queue, now)
        if command.where is not None:
            found = queue.unheld(command.where, now)
            for record in found[: cmd.BULK]:
                queue.finish(record, "cancelled", command.actor, now)
            return Affected(min(len(found), cmd.BULK), more=len(found) > cmd.BULK)

        versions = versions_of(command)

        def cancel(record: Record, number: int) -> Outcome | bool:
            if record.successor and command.if_due is None and not versions:
                return record.forsake(now)
            if record.state not in ("delayed", "ready") or command.if_due not in (None, record.due):
                return False
            queue.finish(record, "cancelled", command.actor, now)
            return True

        return self._each(queue, command.ids, now, cancel, versions)

    def _reschedule(self, command: cmd.Reschedule, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)
        due = now + command.delay if command.at is None else command.at

        def reschedule(record: Record, number: int) -> bool:
            if record.state not in ("delayed", "ready") or command.if_due not in (None, record.due):
                return False
            queue.plan(record, due)
            return True

        return self._each(queue, command.ids, now, reschedule, versions_of(command))

    def _edit(self, command: cmd.Edit, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)
        due = command.due(now)
        states = ("delayed", "ready", "dead") if due is None else ("delayed", "ready")

        def edit(record: Record, number: int) -> bool:
            if record.state not in states or (record.state == "dead" and record.in_transit):
                return False
            queue.edit(record, command, due)
            return True

        return self._each(queue, command.ids, now, edit, versions_of(command))

    def _release(self, command: cmd.Release, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def release(record: Record, number: int) -> bool:
            if record.state != "leased":
                return False
            if queue.failed(record, command.reason, now, now):
                queue.tally["retried"] += 1
                queue.ready(record)
            return True

        return self._each(queue, command.ids, now, release, versions_of(command))

    def _revive(self, command: cmd.Revive, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def revive(record: Record, number: int) -> bool:
            if record.state != "dead":
                return False
            record.attempt, asked = 0, record.message("", now).as_edited().due
            queue.plan(record, now + command.delay)
            record.asked = asked
            queue.tally["revived"] += 1
            return True

        return self._each(queue, command.ids, now, revive, versions_of(command))

    def _each(
        self,
        queue: QueueState,
        ids: Iterable[str],
        now: int,
        change: Change,
        versions: Mapping[str, str] | None = None,
    ) -> Outcomes:
        """Change each message that has the version it must have; tell where the others are."""
        outcomes, wakes = [], []
        freed = False
        for number, id in enumerate(ids):
            record = queue.records.get(id)
            if record is None:
                outcomes.append(Outcome(id, False))
                continue
            record = queue.settle_lapsed(record, now)
            was_leased = record.state == "leased"
            done = record.is_still((versions or {}).get(id)) and change(record, number)
            if was_leased and record.state != "leased":
                freed = True
                if record.successor is not None:
                    record, done = queue.succeed(record), True
            outcome = record.outcome(done, now) if isinstance(done, bool) else done
            if outcome.done and outcome.state in ("delayed", "ready"):
                wakes.append(record.due)
            outcomes.append(outcome)
        wakes += queue.opens(now) if freed else ()
        return Outcomes(outcomes, min(wakes, default=None))

    def _claim(self, command: cmd.Claim, now: int) -> Claimed:
        return claim(self._queue(command.queue, now), command, now, self._exactly)

    def _held(
        self, queue: QueueState, leases: Sequence[cmd.Lease], now: int, change: Change
    ) -> Outcomes:
        """Change each message whose lease is valid; tell where the others are."""

        def change_held(record: Record, number: int) -> Outcome | bool:
            held = record.state == "leased" and record.token == leases[number].token
            return held and change(record, number)

        return self._each(queue, [lease.id for lease in leases], now, change_held)

    def _extend(self, command: cmd.Extend, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def extend(record: Record, number: int) -> bool:
            queue.extend(record, now + command.lease)
            return True

        return self._held(queue, command.leases, now, extend)

    def _ack(self, command: cmd.Ack, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def ack(record: Record, number: int) -> Outcome | bool:
            queue.tally["acked"] += 1
            record.attempt += 1
            result = command.results[number] if command.results else None
            queue.remember_end(record, "acked", record.holder, now, result)
            if queue.keep:
                queue.end(record, "acked", now)
                return True
            queue.remove(record)
            return Outcome(record.id, True)

        return self._held(queue, command.leases, now, ack)

    def _retry(self, command: cmd.Retry, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def retry(record: Record, number: int) -> bool:
            if command.release and not command.delay:
                queue.ready(record)
            elif command.release or queue.failed(record, command.reason, now, now):
                queue.tally["retried"] += not command.release
                planned = record.due if record.planned is None else record.planned
                if record.expires is not None:
                    record.expires -= now + command.delay - record.due
                queue.delay(record, now + command.delay)
                record.planned = planned
            return True

        return self._held(queue, command.leases, now, retry)

    def _bury(self, command: cmd.Bury, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def bury(record: Record, number: int) -> bool:
            queue.failed(record, command.reason, now, now, final=True)
            return True

        def take(record: Record, number: int) -> bool:
            if record.state not in ("delayed", "ready"):
                return False
            queue.set_aside(record, command.reason, now, command.actor)
            return True

        held = self._held(queue, command.leases, now, bury)
        unheld = self._each(queue, command.ids, now, take)
        return Outcomes(held.outcomes + unheld.outcomes, held.wake)

    def _configure(self, command: cmd.Configure, now: int) -> Settings:
        queue = self._queue(command.queue, now)
        self._states[command.queue] = queue
        resumed = queue.paused and command.paused is False
        if command.paused is not None:
            queue.pause(command.paused, now, command.actor)
        for name in ("keep", "history", "result_ttl"):
            if (value := getattr(command, name)) is not None:
                setattr(queue, name, value)
        wake = now if queue.limit(command) or resumed else None
        limits = (getattr(queue.lines, name) for name in LIMITS)
        return Settings(queue.paused, queue.keep, wake, queue.history, queue.result_ttl, *limits)

    def _delete(self, command: cmd.Delete, now: int) -> Deleted:
        if command.queue not in self._states:
            return Deleted(False)
        found = reading.count(self._queue(command.queue, now), cmd.Count(command.queue), now)
        if found.sizes != Sizes() or found.kept:
            return Deleted(False, found.sizes, found.kept)
        del self._states[command.queue]
        return Deleted(True)

    def _purge(self, command: cmd.Purge, now: int) -> Outcomes | Affected:
        queue = self._queue(command.queue, now)
        if command.ids is not None:

            def purge(record: Record, number: int) -> Outcome | bool:
                if record.state != "dead":
                    return False
                queue.finish(record, "purged", command.actor, now)
                return Outcome(record.id, True, due=record.due)

            return self._each(queue, command.ids, now, purge, versions_of(command))
        found = queue.purgeable(command.state, command.before, now, cmd.BULK + 1)
        for record in found[: cmd.BULK]:
            if record.state in ("acked", "expired"):
                queue.remove(record)
            else:
                queue.finish(record, "purged", command.actor, now)
        return Affected(min(len(found), cmd.BULK), more=len(found) > cmd.BULK)

    def _queues(self, command: cmd.Queues, now: int) -> Names:
        return Names(sorted(name for name in self._states if name.startswith(command.queue)))

    def _read(self, name: str) -> QueueState:
        queue = self._states.get(name) or QueueState(name, int(self._exactly))
        queue.lines.now = int(self._exactly * 1000)
        return queue
