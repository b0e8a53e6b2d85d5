"""The memory engine: the queue in this process, gone when it exits.

It is the specification of all other engines: what it answers, they must answer, and the random
scripts of the conformance suite hold them to it. So it is written to be read, not to be fast. Each
queue is a table of records and a few ordered sets; every command moves records between them.
"""

import time
from collections.abc import Sequence

from bide.engines.cursor import position
from bide.engines.memory.queue_state import QueueState
from bide.engines.port import Capabilities, Engine, Notifier
from bide.engines.queue_row import QueueRow
from bide.engines.queue_rules import outcomes_of
from bide.engines.record_store import RecordStore
from bide.model import commands as cmd
from bide.model.replies import Outcomes, Reply


class MemoryEngine(RecordStore[QueueState]):
    """Executes commands on queues that live in this process."""

    capabilities = Capabilities(durable=False, shared=False, ids_ordered=False)

    def __init__(self) -> None:
        self._states: dict[str, QueueState] = {}

    def execute(self, commands: Sequence[cmd.Command], now: int | None = None) -> list[Reply]:
        """Execute the commands in order. Invalid ones are refused before anything is changed."""
        self.exactly = time.time_ns() / 1e6 if now is None else now
        for command in commands:
            if isinstance(command, cmd.Scan):
                position(command.cursor)
        return [self.execute_one(command) for command in commands]

    def reader(self) -> Engine | None:
        """Return `None`: reads need no second engine."""
        return None

    def notifier(self) -> Notifier | None:
        """Return `None`: no other process uses this store."""
        return None

    def close(self) -> None:
        """Delete all queues."""
        self._states.clear()

    def look(self, name: str) -> QueueState:
        """Return a queue at this time."""
        now = int(self.exactly)
        queue = self._states.get(name) or QueueState(QueueRow(name=name, token=now))
        queue.now, queue.lines.now = now, int(self.exactly * 1000)
        return queue

    def make(self, name: str) -> QueueState:
        """Return a queue that is going to be changed, made if it did not exist."""
        queue = self._states[name] = self.open(name)
        queue.row.id = 1
        return queue

    def drop(self, queue: QueueState) -> None:
        """Delete a queue."""
        del self._states[queue.row.name]

    def names(self, prefix: str) -> list[str]:
        """Return the names of the queues, sorted."""
        return sorted(name for name in self._states if name.startswith(prefix))

    def put(self, command: cmd.Put) -> Outcomes:
        """Store messages one by one."""
        queue = self.make(command.queue)
        stores_new, outcomes = command.on_conflict != "revive" and not command.if_version, []
        for item in command.items:
            if stores_new and item.id not in queue.records:
                outcomes.append(queue.store(item).outcome(True, queue.now))
            else:
                outcomes.append(queue.put_again(item, command))
        return outcomes_of(outcomes)
