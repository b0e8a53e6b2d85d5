"""The steps of bulk changes that can be taken back, and of taking them back."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from bide.lane.steps import Steps, find_all
from bide.model import commands as cmd
from bide.model.commands import Cancel, Put, Reschedule
from bide.model.errors import InvalidArgument, NothingToUndo, OutcomeUnknown
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_BYTES
from bide.model.message import Item, Message, version_of
from bide.model.replies import Explained, Found, Names, Outcome, Outcomes, Page
from bide.model.undoing import PART, UNDO_FOR, Bulk, Part, Undo, Undone, UndoRecord, Verb

encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(UndoRecord).decode


_TOKEN = re.compile("[0-9a-hjkmnp-tv-z]{26}")


def is_token(text: str) -> bool:
    """Tell whether a text can be the token of a bulk change.

    Example:
        >>> is_token("01kb2n8m7dzz4r6y0t5v9x3h1q"), is_token("order-42")
        (True, False)
    """
    return _TOKEN.fullmatch(text) is not None


encode_mark = msgspec.msgpack.encode
decode_mark = msgspec.msgpack.Decoder(dict[int, int | None]).decode
"""A mark has the numbers of the messages that were changed, and when each is due since then."""


def note(id: str, undo: str, data: bytes) -> Item:
    """Return a message that is kept for as long as a change can be taken back.

    Args:
        id: of the message.
        undo: the token of the change, which is the group of all its messages.
        data: the body.
    """
    return Item(id, data, json=False, delay=UNDO_FOR, group=undo)


def nothing(undo: Undo) -> NothingToUndo:
    """Return the error for a token by which nothing can be taken back."""
    return NothingToUndo(
        f"nothing can be taken back by {undo.undo!r}: it is not the token of a change in this "
        f"queue, the change changed nothing, or more than {UNDO_FOR // 60_000} minutes have passed"
    )


def forget_records(queue: str) -> cmd.Purge:
    """Return the command that deletes the records of what can no longer be taken back.

    Args:
        queue: the internal queue of records. Those that are due in it are too old.
    """
    return cmd.Purge(queue, "ready")


def forget_changes() -> Steps[None]:
    """Delete the records of all namespaces of what can no longer be taken back."""
    reply: Names = yield cmd.Queues("")
    for name in filter(InternalQueue.UNDO.matches, reply.names):
        yield forget_records(name)


def bulk_steps(bulk: Bulk) -> Steps[Part]:
    """Change the messages of a bulk command: all that are named, or the next ones that match.

    Before a part of them is changed, it is noted what is needed to take that back.
    """
    if bulk.part == 0:  # the first part of a change also deletes records that are too old
        yield forget_records(InternalQueue.UNDO.beside(bulk.queue))
    if bulk.ids is None:
        return (yield from _change_matching(bulk))
    remaining, part = list(dict.fromkeys(bulk.ids)), bulk.part
    if_dues = dict(zip(bulk.ids, bulk.if_dues, strict=bool(bulk.if_dues)))
    changed_ids: set[str] = set()
    while remaining:
        # Half of what a command may have: a record has the bodies again, with more around them.
        reply: Found = yield cmd.Find(bulk.queue, remaining, max_bytes=MAX_BYTES // 2)
        messages = [
            message
            for message in reply.messages
            if message is not None
            and message.state in _CHANGEABLE[bulk.verb]
            and if_dues.get(message.id, message.due) == message.due
        ]
        if messages:  # each part has one record
            changed_in_part = yield from _change(bulk, part, messages)
            changed_ids |= changed_in_part
            part += 1
        # The answer has as many as there was room for, at least one.
        remaining = remaining[max(1, len(reply.messages)) :]
    unchanged = [id for id in bulk.ids if id not in changed_ids]
    return Part(len(changed_ids), part, unchanged=unchanged)


_CHANGEABLE: dict[Verb, Sequence[str]] = {
    "cancel": ("delayed", "ready"),
    "reschedule": ("delayed", "ready"),
    "postpone": ("delayed", "ready"),
    "revive": ("dead",),
    "purge": ("dead", "delayed", "ready"),
}
"""The states of the messages that each verb changes."""


def _change_matching(bulk: Bulk) -> Steps[Part]:
    """Change the next messages that match."""
    until = bulk.until
    if bulk.verb == "revive" and until is None:  # what dies again is not revived again
        explained: Explained = yield cmd.Explain(bulk.queue)
        until = explained.now + 1
    state = "dead" if bulk.verb == "revive" else bulk.state
    # Half of what a command may have: see `bulk_steps`.
    page: Page = yield cmd.Scan(bulk.queue, state, bulk.where, bulk.cursor, PART, MAX_BYTES // 2)
    states = _CHANGEABLE[bulk.verb] if state is None else (state,)
    messages = [message for message in page.messages if message.state in states]
    if bulk.verb == "reschedule":  # one that is held waits for a person
        messages = [message for message in messages if not message.held]
    cursor, part = page.cursor, bulk.part
    if state == "dead" and until is not None:
        messages = [
            message for message in messages if message.ended is not None and message.ended < until
        ]
        # Dead letters come in the order of their deaths: behind the first later one are only such.
        if len(messages) < len(page.messages):
            cursor = None
    changed_ids: set[str] = set()
    if messages:
        changed_ids = yield from _change(bulk, part, messages)
        part += 1
    return Part(len(changed_ids), part, cursor, until)


def _change(bulk: Bulk, part: int, messages: list[Message]) -> Steps[set[str]]:
    """Note messages, change those that are unchanged, and mark these; return their ids.

    Args:
        bulk: the change.
        part: the number of this part, from 0: its record is found by it.
        messages: as they were read; at least one.

    Raises:
        InvalidArgument: the part was executed before.
    """
    records, key = InternalQueue.UNDO.beside(bulk.queue), f"{bulk.undo}:{part}"
    record = note(key, bulk.undo, encode_record(UndoRecord(bulk.queue, bulk.verb, messages)))
    noted: Outcomes = yield cmd.Put(records, [record], actor=bulk.actor)
    if not noted.outcomes[0]:
        raise InvalidArgument(f"undo={bulk.undo!r}, part={part} was used before; take a new token")
    outcomes: list[Outcome] = []
    for command in _commands(bulk, messages):
        try:
            reply: Outcomes = yield command
        except OutcomeUnknown:  # it may have been executed, so the record must stay
            raise
        except Exception:
            if not outcomes:  # nothing was changed
                yield cmd.Cancel(records, [key])
            raise
        outcomes += reply.outcomes
    due_by_id = {outcome.id: outcome.due for outcome in outcomes if outcome.done}
    mark = {
        number: due_by_id[message.id]
        for number, message in enumerate(messages)
        if message.id in due_by_id
    }
    yield cmd.Put(records, [note(f"{key}:changed", bulk.undo, encode_mark(mark))])
    return set(due_by_id)


def _commands(bulk: Bulk, messages: Sequence[Message]) -> Iterator[cmd.Command]:
    """Yield the commands that change messages, each only if it still is as it was read."""

    def if_unchanged(group: Sequence[Message]) -> dict[str, Any]:
        return {
            "queue": bulk.queue,
            "ids": [message.id for message in group],
            "versions": [message.version for message in group],
            "actor": bulk.actor,
        }

    if bulk.verb == "postpone":
        due_by_id = dict(zip(bulk.ids or (), bulk.dues, strict=True))
        yield cmd.Postpone(
            bulk.queue,
            [message.id for message in messages],
            [due_by_id[message.id] for message in messages],
            [message.due for message in messages],
            bulk.priority,
            actor=bulk.actor,
        )
        return
    # Two commands at most: a purge of all states meets both kinds.
    dead = [message for message in messages if message.state == "dead"]
    pending = [message for message in messages if message.state != "dead"]
    if pending and bulk.verb == "reschedule":
        yield cmd.Reschedule(**if_unchanged(pending), at=bulk.at, delay=bulk.delay)
    elif pending:
        yield cmd.Cancel(**if_unchanged(pending))
    if dead and bulk.verb == "revive":
        yield cmd.Revive(**if_unchanged(dead), delay=bulk.delay)
    elif dead:
        yield cmd.Purge(**if_unchanged(dead), state="dead")


def undo_steps(undo: Undo, allow: Callable[[Verb], object] = lambda verb: None) -> Steps[Undone]:
    """Take back a part of a bulk change.

    Args:
        undo: which one.
        allow: raises if the caller may not take back such a change.

    Raises:
        NothingToUndo: there is no such change of this queue, or it is too old.
    """
    records, key = InternalQueue.UNDO.beside(undo.queue), f"{undo.undo}:{undo.part}"
    names = (key, f"{key}:changed", f"{key}:undone")
    messages = yield from find_all(records, names)
    # Notes in other states are too old.
    notes = {id: message for id, message in messages.items() if message.state == "delayed"}
    record_note, mark_note, undone_note = (notes.get(name) for name in names)
    if record_note is None:
        if undo.part == 0:
            raise nothing(undo)
        return Undone()  # behind the last part
    record = decode_record(record_note.data)
    if record.queue != undo.queue:  # the queues of a namespace have one queue for their records
        raise nothing(undo)
    allow(record.verb)
    count, following = len(record.messages), undo.part + 1
    if undone_note is not None and undone_note.data == b"done":
        return Undone(again=count, following=following)
    # A process died between the change and its mark, or between a beginning to undo and its end.
    if undone_note is not None or mark_note is None:
        return Undone(unknown=count, following=following)
    begun = note(f"{key}:undone", undo.undo, b"begun")
    reply: Outcomes = yield Put(records, [begun])
    if not reply.outcomes[0]:  # another process takes the same back
        return Undone(again=count, following=following)
    try:
        result = yield from _restore(undo, record, decode_mark(mark_note.data))
    except OutcomeUnknown:  # some may be restored, so nobody may try it again
        raise
    except Exception:  # it was refused: nothing of it was restored
        yield Cancel(records, [begun.id])
        raise
    yield Put(records, [note(f"{key}:undone", undo.undo, b"done")], "replace")
    return msgspec.structs.replace(result, following=following)


class _Changed(NamedTuple):
    """A message before a bulk change, and as it is now: as the change has left it."""

    before: Message
    now: Message


def _restore(undo: Undo, record: UndoRecord, mark: dict[int, int | None]) -> Steps[Undone]:
    """Take back what was changed of the messages of a record.

    Args:
        undo: the part that is taken back.
        record: the messages before the change.
        mark: which of them were changed, by number, and when each is due since then.
    """
    messages = [record.messages[number] for number in mark]
    if record.verb in ("cancel", "purge"):
        items = [message.as_item(message.failures, message.ended) for message in messages]
        reply: Outcomes = yield Put(undo.queue, items, actor=undo.actor)
        restored = sum(outcome.done for outcome in reply.outcomes)
        return Undone(restored, taken=len(items) - restored)
    current = yield from find_all(undo.queue, [message.id for message in messages])
    unchanged_since: list[_Changed] = []
    claimed = 0
    for before, due in zip(messages, mark.values(), strict=True):
        now = current.get(before.id)
        attempt = 0 if record.verb == "revive" else before.attempt  # a revival sets it to 0
        if now is None or now.state not in ("delayed", "ready") or now.attempt != attempt:
            claimed += 1
            continue
        version = before.version  # which a revival keeps
        if record.verb == "reschedule":
            version = version_of(before.as_edited(), now.due)
        elif record.verb == "postpone":  # which may have given it a priority
            edited = msgspec.structs.replace(before.as_edited(), priority=now.priority)
            version = version_of(edited, edited.due)
        if (now.version, now.due) == (version, due):
            unchanged_since.append(_Changed(before, now))
    restored = yield from _BACK[record.verb](undo, unchanged_since)
    changed_again = len(messages) - claimed - restored
    return Undone(restored, changed_again, claimed)


def _reschedule_back(undo: Undo, changed: list[_Changed]) -> Steps[int]:
    """Give messages their old due times; return how many.

    What a retry had put off expires when it would have, as in other undos; that it was planned for
    an earlier time is lost. Messages that were moved from one due time to the same other one share
    a command.
    """
    by_change: defaultdict[tuple[int, int, int | None], list[Message]] = defaultdict(list)
    for before, now in changed:
        is_put_off = before.planned is not None and before.expires is not None
        expires = max(0, before.expires or 0) if is_put_off and not before.repeats else None
        by_change[before.due, now.due, expires].append(now)
    restored = 0
    for (old_due, new_due, expires), messages in by_change.items():
        # Versions and `if_due`: one that was changed since it was read stays as it is.
        unchanged: dict[str, Any] = {
            "queue": undo.queue,
            "ids": [message.id for message in messages],
            "at": old_due,
            "if_due": new_due,
            "versions": [message.version for message in messages],
            "actor": undo.actor,
        }
        if expires is None:
            reply: Outcomes = yield Reschedule(**unchanged)
        else:
            reply = yield cmd.Edit(**unchanged, expires=expires)
        restored += sum(outcome.done for outcome in reply.outcomes)
    return restored


def _bury_back(undo: Undo, changed: list[_Changed]) -> Steps[int]:
    """Make dead letters of revived messages, with their attempts and failures; return how many."""
    restored = 0
    for before, now in changed:
        letter = before.as_item(before.failures, before.ended)
        # Only this version: one that was changed since it was read stays as it is.
        put = Put(undo.queue, [letter], "replace", now.version, actor=undo.actor)
        reply: Outcomes = yield put
        if reply.outcomes[0].done:
            restored += 1
    return restored


def _postpone_back(undo: Undo, changed: list[_Changed]) -> Steps[int]:
    """Give messages their old due times and priorities; return how many."""
    by_priority: defaultdict[int | None, list[_Changed]] = defaultdict(list)
    for pair in changed:
        is_same = pair.before.priority == pair.now.priority
        by_priority[None if is_same else pair.before.priority].append(pair)
    restored = 0
    for priority, pairs in by_priority.items():
        reply: Outcomes = yield cmd.Postpone(
            undo.queue,
            [now.id for _, now in pairs],
            [before.due for before, _ in pairs],
            [now.due for _, now in pairs],
            priority,
            actor=undo.actor,
        )
        restored += sum(outcome.done for outcome in reply.outcomes)
    return restored


_BACK: dict[Verb, Callable[[Undo, list[_Changed]], Steps[int]]] = {
    "reschedule": _reschedule_back,
    "postpone": _postpone_back,
    "revive": _bury_back,
}
"""What takes back the changes that leave messages in the store, by verb."""
