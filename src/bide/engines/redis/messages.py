"""Commands about certain messages: put, and all that name messages by id or lease.

What many callers ask for becomes few calls.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.redis.calls import Result, Round, ScriptCall, Step
from bide.engines.redis.constants import SLICE
from bide.engines.redis.layout import Word, as_outcome, packed_values, shard_of
from bide.engines.redis.queues import ShardedQueue
from bide.model import commands as cmd
from bide.model.command_parts import Origin
from bide.model.errors import StoreError
from bide.model.message import REASON_LENGTH, Item, State
from bide.model.replies import Outcome, Outcomes

BYTES = 1_000_000
"""The maximum bytes of one call, unless one message alone is larger."""

_Next = Sequence[Any]
"""Of a message: whether its lease was ended, and when a limited queue allows one after that."""

_encode = msgspec.json.Encoder().encode


def put(run: Sequence[cmd.Put], sharded: ShardedQueue) -> Step:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    command = run[0]
    items = command.items if len(run) == 1 else [item for each in run for item in each.items]
    rows = [(item.id, _record_of(item), _plan_of(item)) for item in items]
    script, head = script_of(command)
    first = None if sharded.count == 1 else sharded.next
    sharded.next += len(items)
    outcomes, answered, failed = yield from in_lots(
        script, command, rows, head, sharded.count, first
    )
    for lot, (now, _change, following, stored) in answered:
        sharded.next = max(sharded.next, following)
        for place, index in enumerate(lot):
            item, outcome = items[index], stored[place]
            if isinstance(outcome, list):
                outcomes[index] = as_outcome(command.queue, item.id, *outcome)
                continue
            state: State = "ready" if outcome <= now else "delayed"
            if item.died is not None:
                state = "dead"
            outcomes[index] = Outcome(item.id, True, state, outcome, item.died)
    return _share_out([len(each.items) for each in run], outcomes, failed)


def _record_of(item: Item) -> bytes:
    """Return the record of an item, from `json` on."""
    state = None if item.died is None else "dead"
    fields = (
        item.json,
        item.priority,
        item.attempt,
        item.attempts,
        item.expires,
        state,
        item.died,
        None,
        None,
        item.group or "",
        _text_of(item.headers),
        item.failures,
    )
    return b"".join((packed_values(fields), b"\xc6", len(item.data).to_bytes(4), item.data))


def _text_of(headers: dict[str, str] | None) -> str:
    return "" if headers is None else _encode(headers).decode()


def _plan_of(item: Item) -> bytes:
    """Return when an item is due, and what else puts it in its place: see put.lua."""
    return packed_values(
        (
            item.delay,
            item.at,
            item.latest,
            item.priority,
            item.expires is not None,
            item.died,
            item.created,
            item.group or "",
        )
    )


def script_of(command: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the script of a command, and its arguments but for the messages: see there."""
    if isinstance(command, cmd.Ack):
        return "ack", (3 if command.results else 2,)
    if isinstance(command, cmd.Put):
        return "put", (command.on_conflict, command.if_version)
    if isinstance(command, cmd.Extend):
        return "extend", (command.lease, 3 if command.progress else 2)
    at = getattr(command, "at", None)
    after = getattr(command, "delay", None)
    if isinstance(command, cmd.Edit):
        return "edit", (at, after, command.if_version, _edited(command))
    verb = command.__struct_config__.tag
    if getattr(command, "release", False):
        verb = "untouched"
    elif getattr(command, "running", False):
        verb = "stop"
    seen = getattr(command, "if_due", None), getattr(command, "if_version", None)
    reason = getattr(command, "reason", "")[:REASON_LENGTH]
    return "change", (verb, at, after, *seen, reason, command.actor)


def _edited(command: cmd.Edit) -> dict[str, Any]:
    """Return the fields of a record that an edit changes."""
    given = command.options
    if given.get("expires", 0) is None:
        given["expires"] = False
    if "group" in given:
        given["group"] = given["group"] or ""
    if "headers" in given:
        given["headers"] = _text_of(given["headers"])
    if command.data is not UNSET:
        given["json"] = command.json
        # The script reads texts, and no bytes.
        given["body"] = msgspec.Raw(b"\xdb" + len(command.data).to_bytes(4) + command.data)
    return given


def _named(command: Any) -> list[tuple[Word, ...]]:
    """Return the id, and the token if there is one, of all messages that a command names.

    Of an ack with results also the result, of an extend with reports the report; of a command with
    versions what the caller saw.
    """
    if isinstance(command, cmd.Ack) and command.results:
        both = zip(command.leases, command.results, strict=True)
        return [(lease.id, str(lease.token), result or "") for lease, result in both]
    if isinstance(command, cmd.Extend) and command.progress:
        reports = zip(command.leases, command.progress, strict=True)
        return [
            (lease.id, str(lease.token), "" if report is None else _encode(report))
            for lease, report in reports
        ]
    leases = [(lease.id, str(lease.token)) for lease in getattr(command, "leases", ())]
    if versions := getattr(command, "versions", None):
        return list(zip(command.ids, versions, strict=True))
    return [*leases, *((id, "") for id in getattr(command, "ids", None) or ())]


def change(run: Sequence[Any], shards: int) -> Step:
    """Change messages of consecutive commands on one queue that say the same."""
    command = run[0]
    script, head = script_of(command)
    named = [_named(each) for each in run]
    rows = named[0] if len(run) == 1 else [row for ids in named for row in ids]
    outcomes, answered, failed = yield from in_lots(script, command, rows, head, shards)
    nexts: list[_Next | None] = [None] * len(rows)
    for lot, (_now, _change, *lists) in answered:
        changed, opens = lists or ([], [])
        for place, index in enumerate(lot):
            id = str(rows[index][0])
            outcomes[index] = (
                as_outcome(command.queue, id, *changed[place]) if changed else Outcome(id, True)
            )
            buried_by_id = isinstance(command, cmd.BuryCommand) and not rows[index][1]
            if opens and not buried_by_id:
                nexts[index] = opens[place]
    return _share_out([len(ids) for ids in named], outcomes, failed, nexts)


class _Lot(msgspec.Struct):
    """The messages of one call."""

    shard: int
    indexes: dict[str, int]
    """Their places among all messages, by their ids."""
    words: list[Word]
    """Their arguments, end to end."""
    size: int = 0
    """Of their arguments, about, in bytes."""


def _divide(rows: Sequence[Sequence[Any]], shards: int) -> list[_Lot]:
    """Divide messages among calls, so that no call is too large or names one twice.

    Args:
        rows: the arguments of each message; its id is the first one.
        shards: of how many the queue is made.

    Returns:
        A lot for each call; one without messages if there are none.
    """
    lots: list[_Lot] = []
    latest: dict[int, _Lot] = {}
    for index, row in enumerate(rows):
        id, size = row[0], sum(map(len, row))
        lot = latest.get(shard := shard_of(id, shards))
        if lot is None or id in lot.indexes or len(lot.indexes) == SLICE or lot.size + size > BYTES:
            lot = latest[shard] = _Lot(shard, {}, [])
            lots.append(lot)
        lot.indexes[id] = index
        lot.words += row
        lot.size += size
    return lots or [_Lot(0, {}, [])]


def in_lots(
    script: str,
    command: Any,
    rows: Sequence[Sequence[Word]],
    head: Sequence[Any],
    shards: int,
    first: int | None = None,
) -> Round:
    """Call a script for messages, in as many calls as are needed.

    Args:
        script: its name.
        command: the first of those that are executed together.
        rows: the arguments of each message; its id is the first one.
        head: the arguments, besides origin and places.
        shards: of how many the queue is made.
        first: the place of the first message of a put, among those of all shards.

    Returns:
        A list with the errors of those messages whose call failed; the indexes of the others with
        what was answered to their call; and the first error.
    """
    lots = _divide(rows, shards)
    origin: Origin | None = getattr(command, "origin", None)
    calls = []
    begun: set[int] = set()
    for lot in lots:
        shard, forwarded, places = lot.shard, None, None
        if origin is not None:
            # A later call to the same shard must not forget what the first one remembers.
            before = "" if shard in begun else origin.before
            forwarded = origin.outbox, before, [origin.rows[at] for at in lot.indexes.values()]
            begun.add(shard)
        if first is not None:
            places = [first + at for at in lot.indexes.values()]
        arguments = *head, forwarded, places
        calls.append(ScriptCall(script, command.queue, arguments, shard, shards, rows=lot.words))
    answers = yield calls
    outcomes: list[Any] = [None] * len(rows)
    answered, failed = [], None
    for place, lot in enumerate(lots):
        answer = answers[place]
        if not isinstance(answer, StoreError):
            answered.append((lot.indexes.values(), answer))
            continue
        failed = failed or answer
        for index in lot.indexes.values():
            outcomes[index] = answer
    return outcomes, answered, failed


def _share_out(
    sizes: Sequence[int],
    outcomes: Sequence[Any],
    failed: StoreError | None,
    nexts: Sequence[_Next | None] = (),
) -> list[Result]:
    """Return the reply, or the error, of each of the commands that were executed together.

    Args:
        sizes: how many messages each command names.
        outcomes: those of all messages, errors as values.
        failed: an error, if there was one: also that of a command that names no message.
        nexts: of a limited queue, but for those that cannot end a lease.
    """
    replies: list[Result] = []
    first = 0
    for size in sizes:
        part = outcomes[first : first + size]
        opens = [each for each in nexts[first : first + size] if each is not None]
        first += size
        wake: int | None = None
        errors = [failed] if failed is not None and not part else []
        for outcome in part:
            if isinstance(outcome, StoreError):
                errors.append(outcome)
            elif outcome.done and outcome.state in _PENDING:
                wake = outcome.due if wake is None or outcome.due < wake else wake
        if errors:
            replies.append(errors[0] if len(errors) >= size else _partly(errors[0]))
            continue
        if opens and any(ended for ended, _ in opens) and (last := opens[-1][1]) is not None:
            wake = last if wake is None else min(wake, last)
        replies.append(Outcomes(part, wake))  # type: ignore[arg-type]
    return replies


_PENDING = ("delayed", "ready")


def _partly(error: StoreError) -> StoreError:
    """Return the error of a command of which some messages were changed."""
    partly = type(error)(f"{error}; the command was carried out for its other messages")
    partly.__cause__ = error.__cause__
    return partly
