"""Change a part of many messages, and note what is needed to take it back."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bide.lane.steps import Steps
from bide.model import commands as cmd
from bide.model.errors import InvalidArgument, OutcomeUnknown
from bide.model.limits import MAX_BYTES
from bide.model.message import Message
from bide.model.replies import Explained, Found, Outcome, Outcomes, Page
from bide.model.undoing import PART, Bulk, Part, Record, Verb, forget_records, records_of
from bide.queue.undoing.records import Mark, encode_record, note


def bulk_steps(bulk: Bulk) -> Steps[Part]:
    """Change a part of some messages, and note what is needed to take it back."""
    if bulk.part == 0:
        yield forget_records(records_of(bulk.queue))
    if bulk.ids is None:
        return (yield from _matching(bulk))
    left, part, done = list(dict.fromkeys(bulk.ids)), bulk.part, set[str]()
    while left:
        found: Found = yield cmd.Find(bulk.queue, left, max_bytes=MAX_BYTES // 2)
        messages = [m for m in found.messages if m is not None and m.state in _CHANGED[bulk.verb]]
        done |= yield from _change(bulk, part, messages)
        part += bool(messages)
        left = left[max(1, len(found.messages)) :]
    return Part(len(done), part, unchanged=[id for id in bulk.ids if id not in done])


_CHANGED: dict[Verb, Sequence[str]] = {
    "cancel": ("delayed", "ready"), "reschedule": ("delayed", "ready"),
    "revive": ("dead",), "purge": ("dead", "delayed", "ready"),
}  # fmt: skip
"""The states of the messages that each verb changes."""


def _matching(bulk: Bulk) -> Steps[Part]:
    """Change the next messages that match."""
    until = bulk.until
    if bulk.verb == "revive" and until is None:  # what dies again is not revived again
        told: Explained = yield cmd.Explain(bulk.queue)
        until = told.now + 1
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
    """Note messages, change those that still are so, and mark these; return their ids."""
    if not messages:
        return set()
    beside, key = records_of(bulk.queue), f"{bulk.undo}:{part}"
    record = note(key, bulk.undo, encode_record(Record(bulk.queue, bulk.verb, messages)))
    noted: Outcomes = yield cmd.Put(beside, [record], actor=bulk.actor)
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
                yield cmd.Cancel(beside, [key])
            raise
        outcomes += reply.outcomes
    done = {outcome.id: outcome for outcome in outcomes if outcome.done}
    unchanged = [number for number, one in enumerate(messages) if one.id not in done]
    moved = messages if bulk.verb in ("reschedule", "revive") else []
    dues = [done[one.id].due or 0 if one.id in done else 0 for one in moved]
    mark = Mark(unchanged, dues)
    yield cmd.Put(beside, [note(f"{key}:changed", bulk.undo, msgspec.json.encode(mark))])
    return set(done)


def _commands(bulk: Bulk, messages: Sequence[Message]) -> Iterator[cmd.Command]:
    """Yield the commands that change messages, each only if it still is as it was read."""

    def as_seen(some: Sequence[Message]) -> dict[str, Any]:
        ids, versions = [one.id for one in some], [one.version for one in some]
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
