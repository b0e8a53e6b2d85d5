"""What a queue was before the commands that run now, to bring it back if they are interrupted.

An exception can strike between any two bytecodes: Ctrl-C, a time limit by a signal, too little
memory or stack. An interrupted command leaves some sets and counters changed, and a sorted list
perhaps broken. So what cannot be derived is saved: the records that commands change, before they
are changed, the counters and the settings. The sets are made anew from the records.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bide.engines.memory.lines import Group
from bide.engines.repetition import Answers
from bide.engines.rules.record import Record

if TYPE_CHECKING:
    from bide.engines.memory.queue_state import QueueState


class Savepoint:
    """The values of a queue before it is changed.

    What has been forgotten because its time was over is not brought back.
    """

    def __init__(self, queue: "QueueState") -> None:
        self.queue = queue
        self._row = copy.copy(queue.row)
        self._seq = queue.seq
        self._pauses = queue.paused
        self._rows = queue.rows
        self._last_end = queue.ends[-1] if queue.ends else None
        self._last_return = queue.returns[-1] if queue.returns else None
        self._records: dict[str, Record | None] = {}
        self._limits = copy.copy(queue.lines.limits)
        self._groups = queue.lines.groups
        self._changed_groups: dict[str, Group | None] = {}

    def save(self, id: str, record: Record | None) -> None:
        """Save a record before its first change; `None`: there is none with this id."""
        if id not in self._records:
            self._records[id] = record

    def save_group(self, key: str, group: Group | None) -> None:
        """Save the turn of a group before its first change."""
        if key not in self._changed_groups:
            self._changed_groups[key] = copy.copy(group)

    def restore(self) -> None:
        """Bring the queue back. An interrupted `restore` may be repeated."""
        queue = self.queue
        queue.row, queue.seq = self._row, self._seq
        queue.paused, queue.rows = self._pauses, self._rows
        while queue.ends and queue.ends[-1] is not self._last_end:
            queue.ends.pop()
        while queue.returns and queue.returns[-1] is not self._last_return:
            queue.returns.pop()
        for id, record in self._records.items():
            if record is None:
                queue.records.pop(id, None)
            else:
                queue.records[id] = record
        queue.sort()
        queue.lines.restore(self._limits, self._groups, self._changed_groups)


@dataclass(slots=True)
class Before:
    """What a store was before the commands that run now."""

    queues: dict[str, Savepoint | None] = field(default_factory=dict)
    """By name, those that are changed; `None`: there was no such queue."""
    answers: dict[tuple[str, str], Answers | None] = field(default_factory=dict)
    """What was remembered of senders, by owner and sender."""
