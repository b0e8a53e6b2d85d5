"""A change of one message, as data."""

from collections.abc import Callable
from typing import Any

import msgspec

from bide.engines.rules.record import Record
from bide.model.ended import End, Ending
from bide.model.message import Item
from bide.model.rank import delayed_rank, ready_rank
from bide.model.replies import Outcome
from bide.model.times import Ms

WAITING = ("delayed", "ready")
"""The states of messages that wait to be claimed."""

_NO_GROUPS: dict[str, int] = {}


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the rules need to know of a queue."""

    now: int
    """The time of the command, in Unix milliseconds."""
    keep: Ms = 0
    """How long the queue keeps acked messages; 0: not at all."""
    history: Ms = 0
    """How long it remembers how messages ended."""
    result_ttl: Ms = 0
    """How long it remembers their results."""
    closes: Callable[[str], int | None] = _NO_GROUPS.get
    """Returns until when a group is closed, in Unix milliseconds; `None`: it is not."""

    def closed_until(self, group: str | None) -> int | None:
        """Return until when a group is closed; `None`: it is open, or there is no group."""
        until = None if group is None else self.closes(group)
        return None if until is None or until <= self.now else until

    def refuses_until(self, item: Item) -> int | None:
        """Return until when a put of an item is refused, its group being closed; `None`: it is not.

        A dead letter of an import is stored: it is not delivered.
        """
        return None if item.died is not None else self.closed_until(item.group)


class Change(msgspec.Struct, frozen=True, gc=False):
    """One step of a message: from one record to another."""

    before: Record | None
    """The record in the store; `None`: there is none."""
    after: Record | None
    """The record to have in its place, with the same sequence number; `None`: none."""
    counts: tuple[str, ...] = ()
    """The counters of `Flow` that grow by one, with repetitions."""
    ends: tuple[End, ...] = ()
    """How the message ended, if the queue remembers that."""
    returned: bool = False
    """Whether it has gone to an earlier set, or to an earlier place in its set, so that a scan that
    is under way must be told."""
    renewed: bool = False
    """Whether `after` is the record of another put: all of it is stored again."""
    outcome: Outcome | None = None
    """What the caller is told, if that is more than where the message is now."""

    @property
    def moves(self) -> bool:
        """Whether the place of the message in the sets of its queue must be written.

        That is so if it is new, deleted or replaced, or changes its place. A message that stays
        leased keeps its place, whatever the end of its lease.
        """
        before, after = self.before, self.after
        if before is None or after is None or self.renewed:
            return True
        if before.state == after.state == "leased":
            return False
        return _place(before) != _place(after)

    @property
    def ends_lease(self) -> bool:
        """Whether a worker held the message, and none holds it now."""
        before, after = self.before, self.after
        held = before is not None and before.state == "leased"
        return held and (after is None or after.state != "leased")


def _place(record: Record) -> tuple[Any, ...]:
    """Return what decides where a record is in the sets of its queue, to be compared."""
    if record.state in ("delayed", "ready"):  # its group decides in which line it is
        return record.state, record.rank, record.due, record.group
    return record.state, record.rank


def unchanged(record: Record, now: int) -> Change:
    """Return the change of a command that could not be done."""
    return Change(record, record, outcome=record.outcome(False, now))


def delayed(record: Record, due: int, *, planned: int | None = None, **fields: Any) -> Record:
    """Return a record that waits until a time.

    Args:
        record: before.
        due: that time, in Unix milliseconds.
        planned: if a worker has put it off, when it was due before; see `Record.planned`.
        fields: other fields of the record that change.
    """
    rank = delayed_rank(due, record.priority)
    return _placed(record, "delayed", rank, due=due, ended=None, planned=planned, **fields)


def ready(record: Record, **fields: Any) -> Record:
    """Return a record that can be claimed."""
    return _placed(record, "ready", ready_rank(record.due, record.priority), **fields)


def ended(record: Record, state: str, moment: int, **fields: Any) -> Record:
    """Return a record that is dead, acked or expired since a time in Unix milliseconds."""
    return _placed(record, state, moment, ended=moment, **fields)


def leased(record: Record, holder: str, token: int, now: int, until: int) -> Record:
    """Return a record that a worker holds from now until a time, both in Unix milliseconds."""
    lease = {"holder": holder, "token": token, "since": now, "until": until}
    return _placed(record, "leased", until, **lease)


def expired(record: Record, facts: Facts) -> Change:
    """Return the change of a message that is too late to be delivered."""
    after = ended(record, "expired", facts.now)
    return Change(record, after, ("expired",), end_of(record, "expired", None, facts))


def end_of(
    record: Record, how: Ending, by: str | None, facts: Facts, result: bytes | None = None
) -> tuple[End, ...]:
    """Return what the queue remembers of the end of a message: one `End`, or nothing.

    The end of a message whose worker was asked to stop is remembered by each queue for a while,
    because the caller of the cancel may wait for it.

    Args:
        record: of the message, with all its attempts.
        how: it ended.
        by: who ended it; `None`: time did.
        facts: of the queue.
        result: of an ack, as JSON, if it has one.
    """
    if not (facts.history or facts.result_ttl or record.stopping is not None):
        return ()
    failures = record.failures if facts.history else ()
    remembered_result = result if facts.result_ttl else None
    end = End(
        how=how,
        moment=facts.now,
        by=by,
        due=record.due,
        attempt=record.attempt,
        since=record.since,
        failures=failures,
        result=remembered_result,
    )
    return (end,)


def finished(record: Record, how: Ending, by: str | None, facts: Facts) -> Change:
    """Delete the message; unless it has ended before, count that, and remember how it ended."""
    outcome = Outcome(record.id, True, None, record.due, record.ended, record.holder)
    if record.state in ("acked", "expired"):  # that end was counted and is remembered
        return Change(record, None, outcome=outcome)
    return Change(record, None, (how,), end_of(record, how, by, facts), outcome=outcome)


_NO_LEASE: dict[str, Any] = {
    "holder": None,
    "token": None,
    "since": None,
    "until": None,
    "extended": 0,
    "stopping": None,
    "progress": None,
}
"""The fields that only a leased record has."""


def _placed(record: Record, state: str, rank: int, **fields: Any) -> Record:
    """Return a record in the set of a state, with its rank there and without its earlier lease."""
    if record.state == "leased":
        fields = {**_NO_LEASE, **fields}
    return msgspec.structs.replace(record, state=state, rank=rank, **fields)
