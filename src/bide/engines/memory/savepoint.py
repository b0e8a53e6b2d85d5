"""What a queue was before the commands that run now, to bring it back if they are interrupted.

An exception can strike between any two bytecodes: Ctrl-C, a time limit by a signal, too little
memory or stack. An interrupted command leaves some sets and counters changed, and a sorted list
perhaps broken. So what cannot be derived is saved: the records that commands change, before they
are changed, the counters and the settings. The sets are rebuilt from the records.
"""

import copy
from dataclasses import dataclass, field

from bide.engines.limiter import Limits
from bide.engines.memory.group import Group
from bide.engines.queue_row import QueueRow
from bide.engines.rules.record import Record
from bide.model.ended import End
from bide.model.replies import Pause


@dataclass(slots=True, kw_only=True)
class Savepoint:
    """The values of a queue before it is changed.

    What has been forgotten because its time was over is not brought back.
    """

    row: QueueRow
    seq: int
    """The number of its last record."""
    pauses: tuple[Pause, ...]
    forwarded: frozenset[tuple[str, str]]
    """The rows of outboxes that it remembers: outbox and row."""
    last_end: tuple[str, End] | None
    """The last end of a message that it remembers, with the id: what came after it is removed."""
    last_return: tuple[int, str] | None
    """The last message that returned to an earlier set, likewise: a number and the id."""
    limits: Limits
    groups: dict[str, Group]
    """By key."""
    changed_records: dict[str, Record | None] = field(default_factory=dict)
    """By id, as they were before their first change; `None`: there was none."""
    changed_groups: dict[str, Group | None] = field(default_factory=dict)
    """By key, likewise."""
    changed_closings: dict[str, int | None] = field(default_factory=dict)
    """By the name of the group, until when it was closed before; `None`: it was open."""

    def save_closing(self, group: str, until: int | None) -> None:
        """Save until when a group is closed before the first change of that; `None`: it is not."""
        if group not in self.changed_closings:
            self.changed_closings[group] = until

    def save_group(self, key: str, group: Group | None) -> None:
        """Save the turn of a group before its first change."""
        if key not in self.changed_groups:
            self.changed_groups[key] = copy.copy(group)
