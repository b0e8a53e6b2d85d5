"""Commands about certain messages: put, and all that name messages by id or lease.

What many callers ask for becomes few calls.
"""

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from bide.engines.redis.calls import Result, Round, ScriptCall, Step
from bide.engines.redis.constants import SLICE
from bide.engines.redis.layout import Word, as_outcome, packed_values, shard_of
from bide.engines.redis.queues import ShardedQueue
from bide.model import commands as cmd
from bide.model.command_parts import NewTime, NextRun, Origin
from bide.model.errors import StoreError
from bide.model.message import REASON_LENGTH, Item, State
from bide.model.replies import Outcome, Outcomes

BYTES = 1_000_000
"""The maximum bytes of one call, unless one message alone is larger."""


class _LeaseEnd(NamedTuple):
    """What a change of a message means for the next claim of a limited queue."""

    ended: bool
    """Whether its lease was ended."""
    opens: int | None
    """When a claim gets a ready message after that, in Unix milliseconds; `None`: not before
    another lease ends."""


_WAITING = ("delayed", "ready")
"""The states of messages that wait to be claimed."""

_encode = msgspec.json.Encoder().encode


def put(run: Sequence[cmd.Put], sharded: ShardedQueue) -> Step:
    """Put the messages of consecutive commands on one queue that treat conflicts alike."""
    command = run[0]
    items = command.items if len(run) == 1 else [item for each in run for item in each.items]
    rows = [(item.id, _record_of(item), _plan_of(item)) for item in items]
    script, arguments = script_of(command)
    first_place = None if sharded.count == 1 else sharded.next
    sharded.next += len(items)
    outcomes, answered, failed = yield from in_lots(
        script, command, rows, arguments, sharded.count, first_place
    )
    for indexes, (now, _change, next_place, results) in answered:
        sharded.next = max(sharded.next, next_place)
        for index, result in zip(indexes, results, strict=True):
            item = items[index]
            if isinstance(result, list):  # the id existed, or the message may not be stored
                outcomes[index] = as_outcome(command.queue, item.id, *result)
                continue
            due: int = result
            state: State = "ready" if due <= now else "delayed"
            if item.died is not None:
                state = "dead"
            outcomes[index] = Outcome(item.id, True, state, due, item.died)
    return _share_out([len(each.items) for each in run], outcomes, failed)


def _record_of(item: Item) -> bytes:
    """Return the fields of the record of an item, from `json` on."""
    state = None if item.died is None else "dead"
    ended = item.died
    planned = asked = None
    fields: tuple[Any, ...] = (
        item.json,
        item.priority,
        item.attempt,
        item.attempts,
        item.expires,
        state,
        ended,
        planned,
        asked,
        item.group or "",
        _headers_text(item.headers),
        item.failures,
    )
    if item.rule is not None:
        fields += item.rule, item.run
    # The body is written by hand as "bin 32", its length in four bytes: see _records.lua.
    return b"".join((packed_values(fields), b"\xc6", len(item.data).to_bytes(4), item.data))


def _headers_text(headers: dict[str, str] | None) -> str:
    """Return headers as a record has them: JSON, or empty."""
    return "" if headers is None else _encode(headers).decode()


def _plan_of(item: Item) -> bytes:
    """Return when an item is due, and what else puts it in its place: see put.lua."""
    plan: tuple[Any, ...] = (
        item.delay,
        item.at,
        item.latest,
        item.priority,
        item.expires is not None,
        item.died,
        item.created,
        item.group or "",
    )
    return packed_values(plan if item.rule is None else (*plan, True))


def script_of(command: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the script of a command, and the arguments that are the same for all its messages.

    The head of each script in lua/ says what its arguments are.
    """
    if isinstance(command, cmd.Ack):
        words_of_each = 3 if command.results else 2
        return "ack", (words_of_each,)
    if isinstance(command, cmd.Renew):
        return "renew", (command.how,)
    if isinstance(command, cmd.Put):
        return "put", (command.on_conflict, command.if_version)
    if isinstance(command, cmd.Extend):
        words_of_each = 3 if command.progress else 2
        return "extend", (command.lease, words_of_each)
    if isinstance(command, cmd.Postpone):
        return "postpone", (command.priority,)
    at = getattr(command, "at", None)
    after = getattr(command, "delay", None)
    if isinstance(command, cmd.Edit):
        words_of_each = 4 if command.times else 2
        conditions = command.if_due, command.if_version
        return "edit", (at, after, *conditions, _edited_fields(command), words_of_each)
    verb = command.__struct_config__.tag
    if isinstance(command, cmd.Release):
        verb = "end_lease"
    elif getattr(command, "release", False):  # a `RetryCommand` that counts no attempt
        verb = "give_back"
    elif getattr(command, "running", False):  # a cancel that also asks workers to stop
        verb = "stop"
    elif getattr(command, "moved", False):  # a purge of what is in another store now
        verb = "move"
    conditions = getattr(command, "if_due", None), getattr(command, "if_version", None)
    reason = getattr(command, "reason", "")[:REASON_LENGTH]
    return "change", (verb, at, after, *conditions, reason, command.actor)


def _edited_fields(command: cmd.Edit) -> dict[str, Any]:
    """Return the fields of a record that an edit changes, by their names in Lua."""
    fields = command.options
    for name in ("expires", "rule", "run"):
        if fields.get(name, 0) is None:
            fields[name] = False  # a table of Lua has no nil
    if "group" in fields:
        fields["group"] = fields["group"] or ""
    if "headers" in fields:
        fields["headers"] = _headers_text(fields["headers"])
    if command.data is not UNSET:
        fields["json"] = command.json
        # The script reads texts ("str 32"), and no bytes.
        fields["body"] = msgspec.Raw(b"\xdb" + len(command.data).to_bytes(4) + command.data)
    return fields


def _rows_of(command: Any) -> list[tuple[Word, ...]]:
    """Return what a script is told of each message that a command names.

    Its id, and the token of its lease, the version that the caller saw, or an empty text; of a
    `Release` the holder whose lease alone is meant; of an ack with results also the result, of an
    extend with reports the report; of a renewal the result, and when the next run is due and which
    one it is; of a postponement when it is due from now on, and when it must be due now; of an edit
    with times the due time, and rule and run.
    """
    if isinstance(command, cmd.Renew):
        results = command.results or [None] * len(command.leases)
        return [
            (lease.id, str(lease.token), result or "", _next_words(following))
            for lease, result, following in zip(command.leases, results, command.next, strict=True)
        ]
    if isinstance(command, cmd.Ack) and command.results:
        leases_with_results = zip(command.leases, command.results, strict=True)
        return [(lease.id, str(lease.token), result or "") for lease, result in leases_with_results]
    if isinstance(command, cmd.Extend) and command.progress:
        leases_with_reports = zip(command.leases, command.progress, strict=True)
        return [
            (lease.id, str(lease.token), "" if report is None else _encode(report))
            for lease, report in leases_with_reports
        ]
    if isinstance(command, cmd.Postpone):
        dues = map(str, command.dues)
        dues_now = map(str, command.if_dues or repeat("", len(command.ids)))
        return list(zip(command.ids, dues, dues_now, strict=True))
    if isinstance(command, cmd.Edit) and command.times:
        versions_or_none = command.versions or [""] * len(command.ids)
        return [
            (id, version, "" if time.due is None else str(time.due), _time_words(time))
            for id, version, time in zip(command.ids, versions_or_none, command.times, strict=True)
        ]
    if versions := getattr(command, "versions", None):
        return list(zip(command.ids, versions, strict=True))
    if isinstance(command, cmd.Release):
        return [(id, command.holder or "") for id in command.ids]
    leases = [(lease.id, str(lease.token)) for lease in getattr(command, "leases", ())]
    return [*leases, *((id, "") for id in getattr(command, "ids", None) or ())]


def _time_words(time: NewTime) -> str:
    """Return rule and run of a message as the script reads them, each of them or empty."""
    return f"{time.rule or ''}\n{time.run or ''}"


def _next_words(following: NextRun | None) -> str:
    """Return the next run of a message as the script reads it; empty without one."""
    return "" if following is None else f"{following.due} {following.run}"


def change(run: Sequence[Any], shards: int) -> Step:
    """Change messages of consecutive commands on one queue that differ only in their messages."""
    command = run[0]
    script, arguments = script_of(command)
    rows_by_command = [_rows_of(each) for each in run]
    rows = [row for rows_of_one in rows_by_command for row in rows_of_one]
    outcomes, answered, failed = yield from in_lots(script, command, rows, arguments, shards)
    lease_ends: list[_LeaseEnd | None] = [None] * len(rows)
    for indexes, (_now, _change, *lists) in answered:
        # An ack that only removes messages answers without lists: all were done.
        results, ends = lists or ([], [])
        for place, index in enumerate(indexes):
            id = str(rows[index][0])
            outcomes[index] = (
                as_outcome(command.queue, id, *results[place]) if results else Outcome(id, True)
            )
            has_no_lease = isinstance(command, cmd.BuryCommand) and not rows[index][1]
            if ends and not has_no_lease:
                lease_ends[index] = _LeaseEnd(*ends[place])
    return _share_out([len(each) for each in rows_by_command], outcomes, failed, lease_ends)


class _Lot(msgspec.Struct):
    """The messages of one call."""

    shard: int
    indexes: dict[str, int]
    """Their places among all messages, by their ids."""
    words: list[Word]
    """Their rows, end to end."""
    size: int = 0
    """Of their rows, about, in bytes."""


def _divide(rows: Sequence[Sequence[Any]], shards: int) -> list[_Lot]:
    """Divide messages among calls, so that no call is too large or names one twice.

    Args:
        rows: what a script is told of each message; its id is the first word.
        shards: of how many the queue is made.

    Returns:
        A lot for each call; none if there are no messages.
    """
    lots: list[_Lot] = []
    latest: dict[int, _Lot] = {}  # of each shard
    for index, row in enumerate(rows):
        id, size = row[0], sum(map(len, row))
        shard = shard_of(id, shards)
        lot = latest.get(shard)
        if lot is None or id in lot.indexes or len(lot.indexes) == SLICE or lot.size + size > BYTES:
            lot = latest[shard] = _Lot(shard, {}, [])
            lots.append(lot)
        lot.indexes[id] = index
        lot.words += row
        lot.size += size
    return lots


class LotAnswers(NamedTuple):
    """What came of the calls of `in_lots`. A message is named by its index among all."""

    outcomes: list[Any]
    """By index: the error of the message's call, `None` if it was answered. The caller puts the
    outcomes in there that it reads from `answered`."""
    answered: Sequence[tuple[Collection[int], Any]]
    """Of each call that was answered: the indexes of its messages, and the answer."""
    failed: StoreError | None
    """The first error of a call."""


def in_lots(
    script: str,
    command: Any,
    rows: Sequence[Sequence[Word]],
    arguments: Sequence[Any],
    shards: int,
    first_place: int | None = None,
) -> Round:
    """Call a script for messages, in as many calls as are needed; return `LotAnswers`.

    Args:
        script: its name.
        command: the first of those that are executed together.
        rows: what the script is told of each message; its id is the first word.
        arguments: those of the script, but for the origin and the places at their end.
        shards: of how many the queue is made.
        first_place: the place of the first message of a put, among those of all shards.
    """
    origin: Origin | None = getattr(command, "origin", None)
    lots = _divide(rows, shards)
    if not lots:  # only a queue is made, or each shard forgets rows of an outbox
        lots = [_Lot(shard, {}, []) for shard in range(1 if origin is None else shards)]
    calls = []
    begun: set[int] = set()  # shards with a call before the one at hand
    for lot in lots:
        shard, origin_words, places = lot.shard, None, None
        if origin is not None:
            # The first call to a shard lets it forget the rows of the outbox before this one. A
            # later call must not: it would forget what the first one remembers.
            before = "" if shard in begun else origin.before
            outbox_rows = [origin.rows[index] for index in lot.indexes.values()]
            origin_words = origin.outbox, before, outbox_rows
            begun.add(shard)
        if first_place is not None:
            places = [first_place + index for index in lot.indexes.values()]
        all_arguments = *arguments, origin_words, places
        calls.append(
            ScriptCall(script, command.queue, all_arguments, shard, shards, rows=lot.words)
        )
    answers = yield calls
    outcomes: list[Any] = [None] * len(rows)
    answered, failed = [], None
    for lot, answer in zip(lots, answers, strict=True):
        if not isinstance(answer, StoreError):
            answered.append((lot.indexes.values(), answer))
            continue
        failed = failed or answer
        for index in lot.indexes.values():
            outcomes[index] = answer
    return LotAnswers(outcomes, answered, failed)


def _share_out(
    sizes: Sequence[int],
    outcomes: Sequence[Any],
    failed: StoreError | None,
    lease_ends: Sequence[_LeaseEnd | None] = (),
) -> list[Result]:
    """Return the reply, or the error, of each of the commands that were executed together.

    Args:
        sizes: how many messages each command names.
        outcomes: those of all messages, errors as values.
        failed: an error, if there was one: also that of a command that names no message.
        lease_ends: of each message of a limited queue; `None`: it had no lease to end.
    """
    replies: list[Result] = []
    first = 0
    for size in sizes:
        behind = first + size
        ends = [end for end in lease_ends[first:behind] if end is not None]
        replies.append(_reply_of(outcomes[first:behind], failed, ends))
        first = behind
    return replies


def _reply_of(
    outcomes: Sequence[Any], failed: StoreError | None, lease_ends: Sequence[_LeaseEnd]
) -> Result:
    """Return the reply to one command, or its error; the arguments are those of `_share_out`."""
    if failed is not None and not outcomes:
        return failed
    errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    if errors:
        return errors[0] if len(errors) == len(outcomes) else _partly(errors[0])
    wake: int | None = None
    for outcome in outcomes:
        if outcome.done and outcome.state in _WAITING:
            wake = outcome.due if wake is None else min(wake, outcome.due)
    if any(end.ended for end in lease_ends):
        opens = lease_ends[-1].opens  # the last one was asked when all leases had ended
        if opens is not None:
            wake = opens if wake is None else min(wake, opens)
    return Outcomes(outcomes, wake)  # type: ignore[arg-type]


def _partly(error: StoreError) -> StoreError:
    """Return the error of a command of which some messages were changed."""
    partly = type(error)(f"{error}; the command was carried out for its other messages")
    partly.__cause__ = error.__cause__
    return partly
