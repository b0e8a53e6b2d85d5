"""The memory engine: the queue in this process, gone when it exits.

It is the specification of all other engines: what it answers, they must answer, and the random
scripts of the conformance suite hold them to it. So it is written to be read. Each queue is a table
of records and a few ordered sets; every command moves records between them.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, get_args

from bide.engines.cursor import position
from bide.engines.memory.claim import claim
from bide.engines.memory.explain import explain
from bide.engines.memory.forwarded import once
from bide.engines.memory.queue_state import QueueState
from bide.engines.memory.reading import find, history
from bide.engines.memory.record import Record
from bide.engines.memory.totals import counts, forecast
from bide.engines.port import Capabilities, Engine, Notifier
from bide.model import commands as cmd
from bide.model.message import FORGET
from bide.model.replies import (
    Affected,
    Claimed,
    Counts,
    Deleted,
    Ends,
    Explained,
    Forecasted,
    Found,
    Names,
    Outcome,
    Outcomes,
    Page,
    Reply,
    Settings,
    Sizes,
)
from bide.model.times import LIMITS
from bide.model.versions import versions_of

__all__ = ["MemoryEngine"]


class MemoryEngine:
    """Executes commands on queues that live in this process."""

    capabilities = Capabilities(durable=False, shared=False, ids_ordered=False)

    def __init__(self) -> None:
        self._states: dict[str, QueueState] = {}
        self._exactly = 0.0  # the time of the batch, with fractions of a millisecond
        self._verbs: dict[type, Callable[[Any, int], Reply]] = {
            kind: getattr(self, f"_{kind.__name__.lower()}") for kind in get_args(cmd.Command)
        }

    def execute(self, commands: Sequence[cmd.Command], now: int | None = None) -> list[Reply]:
        """Execute the commands in order. Invalid ones are refused before anything is changed."""
        self._exactly = time.time_ns() / 1e6 if now is None else now
        moment = int(self._exactly)
        for command in commands:
            if isinstance(command, cmd.Scan):
                position(command.cursor)
        return [self._execute(command, moment) for command in commands]

    def _execute(self, command: cmd.Command, now: int) -> Reply:
        verb = self._verbs[type(command)]
        queue = partial(self._queue, command.queue, now)
        return once(queue, command, lambda left: verb(left, now))

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
                if record.is_still(None, command.if_version) and (
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

        def cancel(record: Record) -> Outcome | None:
            version = versions.get(record.id)
            if record.successor and command.if_due is None and version is None:
                return record.forsake(now)
            still = record.is_still(command.if_due, version)
            if record.state not in ("delayed", "ready") or not still:
                return None
            queue.finish(record, "cancelled", command.actor, now)
            return Outcome(record.id, True, due=record.due)

        return self._each(queue, command.ids, now, cancel)

    def _reschedule(self, command: cmd.Reschedule, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)
        due = now + command.delay if command.at is None else command.at
        versions = versions_of(command)

        def reschedule(record: Record) -> Outcome | None:
            version = versions.get(record.id)
            still = record.is_still(command.if_due, version)
            if record.state not in ("delayed", "ready") or not still:
                return None
            queue.plan(record, due)
            return record.outcome(True, now)

        return self._each(queue, command.ids, now, reschedule)

    def _edit(self, command: cmd.Edit, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)
        due = command.due(now)
        states = ("delayed", "ready", "dead") if due is None else ("delayed", "ready")

        def edit(record: Record) -> Outcome | None:
            if record.state not in states or not record.is_still(None, command.if_version):
                return None
            if record.state == "dead" and record.in_transit:
                return None
            queue.edit(record, command, due)
            return record.outcome(True, now)

        return self._each(queue, command.ids, now, edit)

    def _release(self, command: cmd.Release, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)

        def release(record: Record) -> Outcome | None:
            if record.state != "leased":
                return None
            if queue.failed(record, command.reason, now, now):
                queue.tally["retried"] += 1
                queue.ready(record)
            return record.outcome(True, now)

        return self._each(queue, command.ids, now, release, ends_leases=True)

    def _revive(self, command: cmd.Revive, now: int) -> Outcomes:
        queue = self._queue(command.queue, now)
        versions = versions_of(command)

        def revive(record: Record) -> Outcome | None:
            if record.state != "dead" or not record.is_still(None, versions.get(record.id)):
                return None
            record.attempt, asked = 0, record.message("", now).as_edited().due
            queue.plan(record, now + command.delay)
            record.asked = asked
            queue.tally["revived"] += 1
            return record.outcome(True, now)

        return self._each(queue, command.ids, now, revive)

    def _each(
        self,
        queue: QueueState,
        ids: Iterable[str],
        now: int,
        change: Callable[[Record], Outcome | None],
        *,
        ends_leases: bool = False,
    ) -> Outcomes:
        """Change each message with `change`, which returns `None` if it may not be changed."""
        outcomes, wakes = [], []
        freed = False
        for id in ids:
            record = queue.records.get(id)
            if record is None:
                outcomes.append(Outcome(id, False))
                continue
            record = queue.settle_lapsed(record, now)
            outcome = change(record)
            if ends_leases and outcome is not None and record.successor is not None:
                record = queue.succeed(record)
                outcome = record.outcome(True, now)
            if outcome is not None and outcome.state in ("delayed", "ready"):
                wakes.append(record.due)
            freed = freed or (ends_leases and outcome is not None)
            outcomes.append(record.outcome(False, now) if outcome is None else outcome)
        wakes += queue.opens(now) if freed else ()
        return Outcomes(outcomes, min(wakes, default=None))

    def _claim(self, command: cmd.Claim, now: int) -> Claimed:
        return claim(self._queue(command.queue, now), command, now, self._exactly)

    def _held(
        self,
        command: cmd.Extend | cmd.Ack | cmd.Retry | cmd.Bury,
        now: int,
        change: Callable[[QueueState, Record, int], Outcome],
    ) -> Outcomes:
        """Change each message whose lease is valid; return the state of the others.

        `change` also takes the number of the message in the command.
        """
        queue = self._queue(command.queue, now)
        outcomes, wakes = [], []
        freed = False
        for number, lease in enumerate(command.leases):
            record = queue.records.get(lease.id)
            if record is None:
                outcomes.append(Outcome(lease.id, False))
                continue
            record = queue.settle_lapsed(record, now)
            if record.state != "leased" or record.token != lease.token:
                outcomes.append(record.outcome(False, now))
                continue
            outcome = change(queue, record, number)
            if outcome.state != "leased" and record.successor is not None:
                record = queue.succeed(record)
                outcome = record.outcome(True, now)
            if outcome.state in ("delayed", "ready"):
                wakes.append(record.due)
            freed = freed or outcome.state != "leased"
            outcomes.append(outcome)
        wakes += queue.opens(now) if freed else ()
        return Outcomes(outcomes, min(wakes, default=None))

    def _extend(self, command: cmd.Extend, now: int) -> Outcomes:
        def extend(queue: QueueState, record: Record, number: int) -> Outcome:
            queue.extend(record, now + command.lease)
            return record.outcome(True, now)

        return self._held(command, now, extend)

    def _ack(self, command: cmd.Ack, now: int) -> Outcomes:
        def ack(queue: QueueState, record: Record, number: int) -> Outcome:
            queue.tally["acked"] += 1
            record.attempt += 1
            result = command.results[number] if command.results else None
            queue.ends.add(record, "acked", record.holder, now, result)
            if not queue.keep:
                queue.remove(record)
                return Outcome(record.id, True)
            queue.end(record, "acked", now)
            return record.outcome(True, now)

        return self._held(command, now, ack)

    def _retry(self, command: cmd.Retry, now: int) -> Outcomes:
        def retry(queue: QueueState, record: Record, number: int) -> Outcome:
            if command.release and not command.delay:
                queue.ready(record)
            elif command.release or queue.failed(record, command.reason, now, now):
                queue.tally["retried"] += not command.release
                planned = record.due if record.planned is None else record.planned
                if record.expires is not None:
                    record.expires -= now + command.delay - record.due
                queue.delay(record, now + command.delay)
                record.planned = planned
            return record.outcome(True, now)

        return self._held(command, now, retry)

    def _bury(self, command: cmd.Bury, now: int) -> Outcomes:
        def bury(queue: QueueState, record: Record, number: int) -> Outcome:
            queue.failed(record, command.reason, now, now, final=True)
            return record.outcome(True, now)

        def take(record: Record) -> Outcome | None:
            if record.state not in ("delayed", "ready"):
                return None
            queue.set_aside(record, command.reason, now, command.actor)
            return record.outcome(True, now)

        held = self._held(command, now, bury)
        queue = self._queue(command.queue, now)
        unheld = self._each(queue, command.ids, now, take)
        return Outcomes(held.outcomes + unheld.outcomes, held.wake)

    def _find(self, command: cmd.Find, now: int) -> Found:
        return find(self._read(command.queue), command, now)

    def _scan(self, command: cmd.Scan, now: int) -> Page:
        queue = self._read(command.queue)
        records, cursor = queue.page(command, now)
        return Page([record.message(queue.name, now) for record in records], cursor)

    def _count(self, command: cmd.Count, now: int) -> Counts:
        return counts(self._read(command.queue), command, now)

    def _forecast(self, command: cmd.Forecast, now: int) -> Forecasted:
        return forecast(self._read(command.queue), command, now)

    def _explain(self, command: cmd.Explain, now: int) -> Explained:
        return explain(self._read(command.queue), command.id, now)

    def _configure(self, command: cmd.Configure, now: int) -> Settings:
        queue = self._queue(command.queue, now)
        self._states[command.queue] = queue
        resumed = queue.paused and command.paused is False
        if command.paused is not None:
            queue.pause(command.paused, now, command.actor)
        if command.keep is not None:
            queue.keep = command.keep
        ends = queue.ends
        for name in ("history", "result_ttl"):
            if (value := getattr(command, name)) is not None:
                setattr(ends, name, value)
        wake = now if queue.limit(command) or resumed else None
        limits = (getattr(queue.lines, name) for name in LIMITS)
        return Settings(queue.paused, queue.keep, wake, ends.history, ends.result_ttl, *limits)

    def _delete(self, command: cmd.Delete, now: int) -> Deleted:
        if command.queue not in self._states:
            return Deleted(False)
        found = counts(self._queue(command.queue, now), cmd.Count(command.queue), now)
        if found.sizes != Sizes() or found.kept:
            return Deleted(False, found.sizes, found.kept)
        del self._states[command.queue]
        return Deleted(True)

    def _purge(self, command: cmd.Purge, now: int) -> Outcomes | Affected:
        queue = self._queue(command.queue, now)
        if command.ids is not None:
            versions = versions_of(command)

            def purge(record: Record) -> Outcome | None:
                if record.state != "dead" or not record.is_still(None, versions.get(record.id)):
                    return None
                queue.finish(record, "purged", command.actor, now)
                return Outcome(record.id, True, due=record.due)

            return self._each(queue, command.ids, now, purge)
        found = queue.purgeable(command.state, command.before, now, cmd.BULK + 1)
        for record in found[: cmd.BULK]:
            if record.state in ("acked", "expired"):
                queue.remove(record)
            else:
                queue.finish(record, "purged", command.actor, now)
        return Affected(min(len(found), cmd.BULK), more=len(found) > cmd.BULK)

    def _history(self, command: cmd.History, now: int) -> Ends:
        return history(self._read(command.queue), command, now)

    def _queues(self, command: cmd.Queues, now: int) -> Names:
        return Names(sorted(name for name in self._states if name.startswith(command.queue)))

    def _read(self, name: str) -> QueueState:
        queue = self._states.get(name) or QueueState(name, int(self._exactly))
        queue.lines.now = int(self._exactly * 1000)
        return queue
