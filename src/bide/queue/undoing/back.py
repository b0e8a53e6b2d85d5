"""Take back a part of a bulk change."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Cancel, Put, Reschedule
from bide.model.errors import OutcomeUnknown
from bide.model.message import Message, version_of
from bide.model.replies import Outcomes
from bide.model.undoing import Record, Undo, Undone, Verb, records_of
from bide.queue.results import find_all
from bide.queue.undoing.records import Mark, decode_mark, decode_record, note, noted, nothing


def undo_steps(undo: Undo, allow: Callable[[Verb], object] = lambda verb: None) -> Steps[Undone]:
    """Take back a part of a bulk change.

    Args:
        undo: which one.
        allow: raises if the caller may not take back such a change.

    Raises:
        NothingToUndo: there is no such change of this queue, or it is too old.
    """
    beside, key = records_of(undo.queue), f"{undo.undo}:{undo.part}"
    first, mark, undone = yield from noted(beside, [key, f"{key}:changed", f"{key}:undone"])
    if first is None:
        if undo.part == 0:
            raise nothing(undo)
        return Undone()
    record = decode_record(first.data)
    if record.queue != undo.queue:
        raise nothing(undo)
    allow(record.verb)
    following = undo.part + 1
    if undone is not None:
        done = undone.data == b"done"
        count = len(record.messages)
        return Undone(again=count if done else 0, unknown=0 if done else count, following=following)
    if mark is None:
        return Undone(unknown=len(record.messages), following=following)
    begun = [note(f"{key}:undone", undo.undo, b"begun")]
    reply: Outcomes = yield Put(beside, begun)
    if not reply.outcomes[0]:  # another process takes the same back
        return Undone(again=len(record.messages), following=following)
    try:
        result = yield from _restore(undo, record, decode_mark(mark.data))
    except OutcomeUnknown:
        raise
    except Exception:  # it was refused: nothing of it was restored
        yield Cancel(beside, [begun[0].id])
        raise
    yield Put(beside, [note(f"{key}:undone", undo.undo, b"done")], "replace")
    return msgspec.structs.replace(result, following=following)


def _restore(undo: Undo, record: Record, mark: Mark) -> Steps[Undone]:
    """Take back what was changed of the messages of a record."""
    gone = set(mark.unchanged)
    numbers = [number for number in range(len(record.messages)) if number not in gone]
    messages = [record.messages[number] for number in numbers]
    if record.verb in ("cancel", "purge"):
        items = [one.as_item(one.failures, one.ended) for one in messages]
        reply: Outcomes = yield Put(undo.queue, items, actor=undo.actor)
        restored = sum(map(bool, reply.outcomes))
        return Undone(restored, taken=len(items) - restored)
    changed = [
        _Changed(record.messages[number], mark.dues[number], record.verb) for number in numbers
    ]
    found = yield from find_all(undo.queue, [one.id for one in messages])
    same, claimed = list[_Changed](), 0
    for one, now in zip(changed, found, strict=True):
        attempt = 0 if record.verb == "revive" else one.before.attempt
        if now is None or now.state not in ("delayed", "ready") or now.attempt != attempt:
            claimed += 1
        elif now.version == one.version and now.due == one.due:
            same.append(one)
    back = _reschedule_back if record.verb == "reschedule" else _bury_back
    restored = yield from back(undo, same)
    return Undone(restored, len(messages) - claimed - restored, claimed)


class _Changed(NamedTuple):
    """A message that was given another due time."""

    before: Message
    due: int
    verb: Verb

    @property
    def version(self) -> str:
        """Its version since then; a revival keeps it."""
        if self.verb == "revive":
            return self.before.version
        return version_of(self.before.as_edited(), self.due)


def _reschedule_back(undo: Undo, same: list[_Changed]) -> Steps[int]:
    """Let messages be due as before, with one command for all of the same due times."""
    by_due: defaultdict[tuple[int, int], list[_Changed]] = defaultdict(list)
    for one in same:
        by_due[one.before.due, one.due].append(one)
    restored = 0
    for (before, due), some in by_due.items():
        reply: Outcomes = yield Reschedule(
            undo.queue, [one.before.id for one in some], before, if_due=due,
            versions=[one.version for one in some], actor=undo.actor,
        )  # fmt: skip
        restored += sum(map(bool, reply.outcomes))
    return restored


def _bury_back(undo: Undo, same: list[_Changed]) -> Steps[int]:
    """Make dead letters again of messages, with their attempts and failures."""
    restored = 0
    for one in same:
        letter = one.before.as_item(one.before.failures, one.before.ended)
        put = Put(undo.queue, [letter], "replace", one.version, actor=undo.actor)
        reply: Outcomes = yield put
        restored += bool(reply.outcomes[0])
    return restored
