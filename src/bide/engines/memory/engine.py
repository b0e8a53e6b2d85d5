"""The memory engine: the queue in this process, gone when it exits.

It is the specification of all other engines: what it answers, they must answer, and the random
scripts of the conformance suite hold them to it. So it is written to be read, not to be fast. Each
queue is a table of records and a few ordered sets; every command moves records between them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

from bide.engines import message_verbs
from bide.engines.cursor import position
from bide.engines.memory import reading
from bide.engines.memory.claim import claim
from bide.engines.memory.queue_state import QueueState
from bide.engines.origins import executed_once
from bide.engines.port import Capabilities, Engine, Notifier
from bide.engines.queue_rules import Change, outcomes_of
from bide.model import commands as cmd
from bide.model.limits import MAX_FORWARDED
from bide.model.message import FORGET
from bide.model.replies import (
    Affected,
    Claimed,
    Deleted,
    Explained,
    Names,
    Outcome,
    Outcomes,
    Reply,
    Settings,
    Sizes,
)
from bide.model.times import LIMITS


class MemoryEngine:
    """Executes commands on queues that live in this process."""

    capabilities = Capabilities(durable=False, shared=False, ids_ordered=False)

    def __init__(self) -> None:
        self._states: dict[str, QueueState] = {}
        self._exactly = 0.0  # the time of the batch, with fractions of a millisecond
        self._verbs = {kind: self._verb(kind.__name__.lower()) for kind in get_args(cmd.Command)}

    def _verb(self, name: str) -> Callable[[Any, int], Reply]:
        """Return what executes the commands of a kind."""
        if verb := getattr(self, f"_{name}", None):
            return cast("Callable[[Any, int], Reply]", verb)
        if read := getattr(reading, name, None):
            return lambda command, now: read(self._read(command.queue), command, now)
        change = getattr(message_verbs, name)
        return lambda command, now: self._each(
            command, getattr(command, command.named_by), change, now
        )

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
        # It comes from an outbox: skip messages whose rows the queue remembers.
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
        outcomes = []
        for item in command.items:
            record = queue.records.get(item.id)
            if record is not None:
                outcomes.append(queue.put_again(record, item, command, now))
            elif command.on_conflict == "revive" or command.if_version:
                outcomes.append(Outcome(item.id, False))
            else:
                outcomes.append(queue.store(item, now).outcome(True, now))
        return outcomes_of(outcomes)

    def _cancel(self, command: cmd.Cancel, now: int) -> Outcomes | Affected:
        if command.where is None:
            return self._each(command, command.ids, message_verbs.cancel, now)
        if command.dry_run:
            return Affected(len(self._read(command.queue).unheld(command.where, now)))
        queue = self._queue(command.queue, now)
        found = queue.unheld(command.where, now)
        return queue.finish_all(found, "cancelled", command.actor, now)

    def _bury(self, command: cmd.Bury, now: int) -> Outcomes:
        held = self._each(command, command.leases, message_verbs.bury, now)
        waiting = self._each(command, command.ids, message_verbs.set_aside, now)
        return Outcomes(held.outcomes + waiting.outcomes, held.wake)

    def _each(
        self, command: Any, names: Sequence[str | cmd.Lease], change: Change, now: int
    ) -> Outcomes:
        return self._queue(command.queue, now).change_each(command, names, change, now)

    def _claim(self, command: cmd.Claim, now: int) -> Claimed:
        return claim(self._queue(command.queue, now), command, now, self._exactly)

    def _configure(self, command: cmd.Configure, now: int) -> Settings:
        queue = self._queue(command.queue, now)
        self._states[command.queue] = queue
        resumed = queue.paused and command.paused is False
        if command.paused is not None:
            queue.pause(command.paused, now, command.actor)
        for name in ("keep", "history", "result_ttl"):
            if (value := getattr(command, name)) is not None:
                setattr(queue, name, value)
        wake = now if queue.lines.configure(command) or resumed else None
        limits = (getattr(queue.lines.limits, name) for name in LIMITS)
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
        if command.ids is not None:
            return self._each(command, command.ids, message_verbs.purge, now)
        queue = self._queue(command.queue, now)
        found = queue.purgeable(command.state, command.before, now, cmd.BULK + 1)
        return queue.finish_all(found, "purged", command.actor, now)

    def _explain(self, command: cmd.Explain, now: int) -> Explained:
        return self._read(command.queue).explain(command.id, now)

    def _queues(self, command: cmd.Queues, now: int) -> Names:
        return Names(sorted(name for name in self._states if name.startswith(command.queue)))

    def _read(self, name: str) -> QueueState:
        queue = self._states.get(name) or QueueState(name, int(self._exactly))
        queue.lines.now = int(self._exactly * 1000)
        return queue
