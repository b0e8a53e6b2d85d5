"""Take back a part of a bulk change."""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Cancel, Find, Put, Reschedule
from bide.model.errors import OutcomeUnknown
from bide.model.message import Message, version_of
from bide.model.replies import Found, Outcomes
from bide.model.undoing import Record, Undo, Undone, Verb, records_of
from bide.queue.undoing.records import Mark, decode_mark, decode_record, note, noted, nothing

__all__ = ["undo_steps"]


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
    rest = [f"{key}:{n}" for n in range(1, int((first.headers or {}).get("pieces", "1")))]
    others = yield from noted(beside, rest)
    if not all(others):  # they are due at once, and just now
        raise nothing(undo)
    record = decode_record(b"".join(piece.data for piece in (first, *others) if piece is not None))
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
    messages = [one for number, one in enumerate(record.messages) if number not in gone]
    if record.verb in ("cancel", "purge"):
        items = [one.as_item(one.failures, one.ended) for one in messages]
        reply: Outcomes = yield Put(undo.queue, items, actor=undo.actor)
        restored = sum(map(bool, reply.outcomes))
        return Undone(restored, taken=len(items) - restored)
    assert mark.due is not None or not messages
    changed = [(one, _version_after(one, mark.due or 0)) for one in messages]
    found = yield from _found(undo.queue, [one.id for one in messages])
    same, claimed = [], 0
    for one, version in changed:
        now = found.get(one.id)
        attempt = 0 if record.verb == "revive" else one.attempt
        if now is None or now.state not in ("delayed", "ready") or now.attempt != attempt:
            claimed += 1
        elif now.version == version and now.due == mark.due:
            same.append((one, version))
    back = _reschedule_back if record.verb == "reschedule" else _bury_back
    restored = yield from back(undo, same, mark.due or 0)
    return Undone(restored, len(messages) - claimed - restored, claimed)


def _version_after(message: Message, due: int) -> str:
    """Return the version of a message once it was given another due time."""
    expires = message.expires
    if expires is not None and message.planned is not None:
        expires += message.due - message.planned
    return version_of(msgspec.structs.replace(message, expires=expires), due)


def _found(queue: str, ids: list[str]) -> Steps[dict[str, Message]]:
    found: dict[str, Message] = {}
    while ids:
        reply: Found = yield Find(queue, ids)
        found |= {one.id: one for one in reply.messages if one is not None}
        ids = ids[max(1, len(reply.messages)) :]
    return found


def _reschedule_back(undo: Undo, same: list[tuple[Message, str]], due: int) -> Steps[int]:
    """Let messages be due as before, with one command for all of the same due time."""
    by_due: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for message, version in same:
        by_due[message.due].append((message.id, version))
    restored = 0
    for before, pairs in by_due.items():
        reply: Outcomes = yield Reschedule(
            undo.queue, [id for id, _ in pairs], before, if_due=due,
            versions=[version for _, version in pairs], actor=undo.actor,
        )  # fmt: skip
        restored += sum(map(bool, reply.outcomes))
    return restored


def _bury_back(undo: Undo, same: list[tuple[Message, str]], due: int) -> Steps[int]:
    """Make dead letters again of messages, with their attempts and failures."""
    restored = 0
    for message, version in same:
        letter = message.as_item(message.failures, message.ended)
        reply: Outcomes = yield Put(undo.queue, [letter], "replace", version, actor=undo.actor)
        restored += bool(reply.outcomes[0])
    return restored
