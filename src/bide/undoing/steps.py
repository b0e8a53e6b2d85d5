"""The steps of bulk changes that can be taken back, and of taking them back."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
    """Return a message that is kept for as long as a change can be taken back."""
    return Item(id, data, False, delay=UNDO_FOR, group=undo)


def nothing(undo: Undo) -> NothingToUndo:
    """Return the error for a token by which nothing can be taken back."""
    return NothingToUndo(
        f"nothing can be taken back by {undo.undo!r}: it is not the token of a change in this "
        f"queue, the change changed nothing, or more than {UNDO_FOR // 60_000} minutes have passed"
    )


def forget_records(queue: str) -> cmd.Purge:
    """Return the command that deletes the records of what can no longer be taken back."""
    return cmd.Purge(queue, "ready")


def forget_changes() -> Steps[None]:
    """Delete the records of all namespaces of what can no longer be taken back."""
    reply: Names = yield cmd.Queues("")
    for name in filter(InternalQueue.UNDO.matches, reply.names):
        yield forget_records(name)


def bulk_steps(bulk: Bulk) -> Steps[Part]:
    """Change a part of some messages, and note what is needed to take it back."""
    if bulk.part == 0:
        yield forget_records(InternalQueue.UNDO.beside(bulk.queue))
    if bulk.ids is None:
        return (yield from _matching(bulk))
    remaining, part, done = list(dict.fromkeys(bulk.ids)), bulk.part, set[str]()
    while remaining:
        reply: Found = yield cmd.Find(bulk.queue, remaining, max_bytes=MAX_BYTES // 2)
        messages = [m for m in reply.messages if m is not None and m.state in _CHANGED[bulk.verb]]
        done |= yield from _change(bulk, part, messages)
        part += bool(messages)
        remaining = remaining[max(1, len(reply.messages)) :]
    return Part(len(done), part, unchanged=[id for id in bulk.ids if id not in done])


_CHANGED: dict[Verb, Sequence[str]] = {
    "cancel": ("delayed", "ready"),
    "reschedule": ("delayed", "ready"),
    "revive": ("dead",),
    "purge": ("dead", "delayed", "ready"),
}
"""The states of the messages that each verb changes."""


def _matching(bulk: Bulk) -> Steps[Part]:
    """Change the next messages that match."""
    until = bulk.until
    if bulk.verb == "revive" and until is None:  # what dies again is not revived again
        explained: Explained = yield cmd.Explain(bulk.queue)
        until = explained.now + 1
    state = "dead" if bulk.verb == "revive" else bulk.state
    page: Page = yield cmd.Scan(bulk.queue, state, bulk.where, bulk.cursor, PART, MAX_BYTES // 2)
    states = _CHANGED[bulk.verb] if state is None else (state,)
    messages = [m for m in page.messages if m.state in states]
    cursor = page.cursor
    if state == "dead" and until is not None:
        messages = [m for m in messages if m.ended is not None and m.ended < until]
        cursor = cursor if len(messages) == len(page.messages) else None
    done = yield from _change(bulk, bulk.part, messages)
    return Part(len(done), bulk.part + bool(messages), cursor, until)


def _change(bulk: Bulk, part: int, messages: list[Message]) -> Steps[set[str]]:
    """Note messages, change those that are unchanged, and mark these; return their ids."""
    if not messages:
        return set()
    records, key = InternalQueue.UNDO.beside(bulk.queue), f"{bulk.undo}:{part}"
    record = note(key, bulk.undo, encode_record(UndoRecord(bulk.queue, bulk.verb, messages)))
    noted: Outcomes = yield cmd.Put(records, [record], actor=bulk.actor)
    if not noted.outcomes[0]:
        raise InvalidArgument(f"undo={bulk.undo!r}, part={part} was used before; take a new token")
    outcomes: list[Outcome] = []
    for command in _commands(bulk, messages):
        try:
            reply: Outcomes = yield command
        except OutcomeUnknown:
            raise
        except Exception:
            if not outcomes:  # nothing was changed
                yield cmd.Cancel(records, [key])
            raise
        outcomes += reply.outcomes
    done = {outcome.id: outcome.due for outcome in outcomes if outcome.done}
    mark = {
        number: done[message.id] for number, message in enumerate(messages) if message.id in done
    }
    yield cmd.Put(records, [note(f"{key}:changed", bulk.undo, encode_mark(mark))])
    return set(done)


def _commands(bulk: Bulk, messages: Sequence[Message]) -> Iterator[cmd.Command]:
    """Yield the commands that change messages, each only if it still is as it was read."""

    def as_seen(some: Sequence[Message]) -> dict[str, Any]:
        ids, versions = [message.id for message in some], [message.version for message in some]
        return {"queue": bulk.queue, "ids": ids, "versions": versions, "actor": bulk.actor}

    dead = [message for message in messages if message.state == "dead"]
    others = [message for message in messages if message.state != "dead"]
    if others and bulk.verb == "reschedule":
        yield cmd.Reschedule(**as_seen(others), at=bulk.at, delay=bulk.delay)
    elif others:
        yield cmd.Cancel(**as_seen(others))
    if dead and bulk.verb == "revive":
        yield cmd.Revive(**as_seen(dead), delay=bulk.delay)
    elif dead:
        yield cmd.Purge(**as_seen(dead), state="dead")


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
    notes = yield from find_all(records, names)
    # Notes in other states are too old.
    kept = {id: message for id, message in notes.items() if message.state == "delayed"}
    first, mark, undone = map(kept.get, names)
    if first is None:
        if undo.part == 0:
            raise nothing(undo)
        return Undone()
    record = decode_record(first.data)
    if record.queue != undo.queue:
        raise nothing(undo)
    allow(record.verb)
    count, following = len(record.messages), undo.part + 1
    if undone is not None and undone.data == b"done":
        return Undone(again=count, following=following)
    if undone is not None or mark is None:
        return Undone(unknown=count, following=following)
    begun = [note(f"{key}:undone", undo.undo, b"begun")]
    reply: Outcomes = yield Put(records, begun)
    if not reply.outcomes[0]:  # another process takes the same back
        return Undone(again=count, following=following)
    try:
        result = yield from _restore(undo, record, decode_mark(mark.data))
    except OutcomeUnknown:
        raise
    except Exception:  # it was refused: nothing of it was restored
        yield Cancel(records, [begun[0].id])
        raise
    yield Put(records, [note(f"{key}:undone", undo.undo, b"done")], "replace")
    return msgspec.structs.replace(result, following=following)


_Pair = tuple[Message, Message]
"""A message before a change, and after it."""


def _restore(undo: Undo, record: UndoRecord, mark: dict[int, int | None]) -> Steps[Undone]:
    """Take back what was changed of the messages of a record."""
    messages = [record.messages[number] for number in mark]
    if record.verb in ("cancel", "purge"):
        items = [message.as_item(message.failures, message.ended) for message in messages]
        reply: Outcomes = yield Put(undo.queue, items, actor=undo.actor)
        restored = sum(map(bool, reply.outcomes))
        return Undone(restored, taken=len(items) - restored)
    current = yield from find_all(undo.queue, [message.id for message in messages])
    same, claimed = list[_Pair](), 0
    for before, due in zip(messages, mark.values(), strict=True):
        now = current.get(before.id)
        attempt = 0 if record.verb == "revive" else before.attempt
        if now is None or now.state not in ("delayed", "ready") or now.attempt != attempt:
            claimed += 1
            continue
        version = before.version  # which a revival keeps
        if record.verb == "reschedule":
            version = version_of(before.as_edited(), now.due)
        if (now.version, now.due) == (version, due):
            same.append((before, now))
    back = _reschedule_back if record.verb == "reschedule" else _bury_back
    restored = yield from back(undo, same)
    return Undone(restored, len(messages) - claimed - restored, claimed)


def _reschedule_back(undo: Undo, same: list[_Pair]) -> Steps[int]:
    """Let messages be due as before, with one command for all of the same due times."""
    by_due: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    for before, now in same:
        by_due[before.due, now.due].append(now)
    restored = 0
    for (before_due, due), some in by_due.items():
        reply: Outcomes = yield Reschedule(
            undo.queue,
            [message.id for message in some],
            before_due,
            if_due=due,
            versions=[message.version for message in some],
            actor=undo.actor,
        )
        restored += sum(map(bool, reply.outcomes))
    return restored


def _bury_back(undo: Undo, same: list[_Pair]) -> Steps[int]:
    """Make dead letters again of messages, with their attempts and failures."""
    restored = 0
    for before, now in same:
        letter = before.as_item(before.failures, before.ended)
        put = Put(undo.queue, [letter], "replace", now.version, actor=undo.actor)
        reply: Outcomes = yield put
        restored += bool(reply.outcomes[0])
    return restored
