"""The memory engine: the queue in this process, gone when it exits.

It is the specification of all other engines: what it answers, they must answer, and the random
scripts of the conformance suite hold them to it. So it is written to be read, not to be fast. Each
queue is a table of records and a few ordered sets; every command moves records between them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bide.engines.bounded_dict import BoundedDict
from bide.engines.constants import MAX_SENDERS
from bide.engines.cursor import position
from bide.engines.ended_pages import end_position
from bide.engines.execution.commands import answer_again, execute
from bide.engines.memory.queue_state import MemoryQueue
from bide.engines.port import Capabilities, Engine, Identities, Identity, Notifier, replies_of
from bide.engines.queue_row import QueueRow
from bide.engines.repetition import Answers, recall, remember
from bide.engines.rules.decide import Decision, decide_new, decide_put
from bide.model import commands as cmd
from bide.model.errors import OutcomeUnknown
from bide.model.replies import Outcome, Outcomes, Reply


@dataclass(slots=True)
class Before:
    """What a store was before the commands that run now."""

    queues: dict[str, MemoryQueue | None] = field(default_factory=dict)
    """By name, those that are changed, each with its savepoint; `None`: there was no such queue."""
    answers: dict[tuple[str, str], Answers | None] = field(default_factory=dict)
    """What was remembered of senders, by owner and sender."""


class MemoryEngine:
    """Executes commands on queues that live in this process."""

    capabilities = Capabilities(
        durable=False, shared=False, ids_ordered=False, remembers=True, recovers=True
    )

    now_exact: float
    """The time of the commands that run, in Unix milliseconds with fractions."""

    def __init__(self) -> None:
        self._queues: dict[str, MemoryQueue] = {}
        """By name."""
        self._last_token = 0
        """The highest token of a deleted queue: one that is made again gives only larger ones."""
        self._answers: dict[str, BoundedDict[str, Answers]] = {}
        """What is remembered of senders, by owner and sender."""
        self._before: Before | None = None
        """While commands run, or after they were interrupted: what the store was before them."""

    def execute(
        self, commands: Sequence[cmd.Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute the commands in order: all of them, or after any exception none.

        What an interrupt has left half done is undone first by the next call, which no interrupt
        can keep from it.
        """
        if self._before is not None:
            self._undo(self._before)
        self.now_exact = time.time_ns() / 1e6 if now is None else now
        for command in commands:
            if isinstance(command, cmd.Scan):
                position(command.cursor)  # a wrong cursor is refused before anything is done
            elif isinstance(command, cmd.ListEnded):
                end_position(command.cursor)
        self._before = before = Before()
        if identities is None:
            replies = [execute(self, command) for command in commands]
        else:
            pairs = zip(commands, identities, strict=True)
            outcomes = [
                self._execute_once(command, identity, before) for command, identity in pairs
            ]
        self._before = None  # from here on nothing undoes them
        return replies if identities is None else replies_of(outcomes)

    def _undo(self, before: Before) -> None:
        """Undo interrupted commands; if this is interrupted, the next call repeats it."""
        for name, queue in before.queues.items():
            if queue is None:
                self._queues.pop(name, None)
            else:
                queue.restore()
                self._queues[name] = queue
        for (owner, sender), answers in before.answers.items():
            if answers is not None:
                self._answers[owner][sender] = answers
            elif owner in self._answers:
                self._answers[owner].pop(sender, None)
        self._before = None

    def _execute_once(
        self, command: cmd.Command, identity: Identity | None, before: Before
    ) -> Reply | OutcomeUnknown:
        """Execute a command, unless its identity says that it was executed before."""
        if identity is None:
            return execute(self, command)
        senders = self._answers.get(identity.owner, BoundedDict(MAX_SENDERS))
        answers = senders.get(identity.sender)
        try:
            kept = recall(identity, answers)
        except OutcomeUnknown as unknown:
            return unknown
        if kept is not None:
            return answer_again(self, command.queue, kept)
        reply = execute(self, command)
        if (remembered := remember(identity, reply, answers)) is not None:
            before.answers.setdefault((identity.owner, identity.sender), answers)
            senders[identity.sender] = remembered
            self._answers[identity.owner] = senders
        return reply

    def reader(self) -> Engine | None:
        """Return `None`: reads need no second engine."""
        return None

    def notifier(self) -> Notifier | None:
        """Return `None`: no other process uses this store."""
        return None

    def close(self) -> None:
        """Delete all queues."""
        self._queues.clear()
        self._answers.clear()
        self._before = None

    def look(self, name: str) -> MemoryQueue:
        """Return a queue at this time."""
        now = int(self.now_exact)
        queue = self._queues.get(name)
        if queue is None:
            queue = MemoryQueue(QueueRow(name=name, token=max(now, self._last_token)))
        queue.now, queue.lines.now = now, int(self.now_exact * 1000)  # lines count microseconds
        return queue

    def open(self, name: str) -> MemoryQueue:
        """Return a queue that is going to be changed; save what it is now."""
        queue = self.look(name)
        if self._before is not None and name not in self._before.queues:
            queue.save_values()
            self._before.queues[name] = queue if name in self._queues else None
        queue.forget()  # what it has remembered for long enough: with each change, a part
        return queue

    def make(self, name: str) -> MemoryQueue:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self._queues[name] = self.open(name)
        queue.row.id = 1  # not 0: it exists
        return queue

    def drop(self, queue: MemoryQueue) -> None:
        """Delete a queue."""
        self._last_token = max(self._last_token, queue.row.token)
        del self._queues[queue.row.name]

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues, sorted."""
        return sorted(name for name in self._queues if name.startswith(prefix))

    def put(self, command: cmd.Put) -> Outcomes:
        """Store messages one by one."""
        queue = self.make(command.queue)
        outcomes = []
        for item in command.items:
            record = queue.records.get(item.id)
            if record is not None:
                decision = decide_put(record, command, item, queue.facts)
            elif command.stores_new:
                decision = decide_new(item, queue.next_seq(), queue.facts)
            else:
                decision = Decision([], Outcome(item.id, False))
            queue.apply(decision.changes)
            outcomes.append(decision.outcome)
        return Outcomes.of(outcomes)
