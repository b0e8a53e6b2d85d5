"""Claim, find, count, forecast, queues: from rows to messages and figures."""

import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import msgspec

from bide.engines.cursor import Budget
from bide.engines.postgres.arrays import integers, texts
from bide.engines.postgres.batch import NEVER, PostgresBatch
from bide.logs import logger
from bide.model import commands as cmd
from bide.model.ended import ENDINGS, KEPT_ENDS, PENDING, End, within_budget
from bide.model.message import STATES, UNREADABLE, Failure, Item, Message, State, unreadable
from bide.model.progress import Progress
from bide.model.rank import PROMOTE
from bide.model.replies import (
    AHEAD,
    Claimed,
    Counts,
    Died,
    Ends,
    Explained,
    Forecasted,
    Found,
    Names,
    Reply,
)

DAMAGED = (ValueError, TypeError, msgspec.MsgspecError)
"""What reading a row raises that bide has not written so."""

_SHOWN = (
    "id",
    "data",
    "is_json",
    "due",
    "priority",
    "attempt",
    "attempts",
    "expires",
    "group",
    "headers",
    "failures",
)

FOREVER = 1 << 53

_headers = msgspec.json.Decoder(dict[str, str]).decode
_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
_progress = msgspec.json.Decoder(Progress).decode

_log = logger("bide.postgres")


def message(queue: str, row: Any, now: int) -> Message:
    """Return a row as a message; as a dead letter if it cannot be read."""
    try:
        return _message(queue, row, now)
    except DAMAGED:
        stored = repr({name: getattr(row, name) for name in _SHOWN})
        return unreadable(queue, row.id, stored.encode(), now)


def _message(queue: str, row: Any, now: int) -> Message:
    code = row.state
    if code == 0 and row.due <= now:
        code = 1
    until = row.rank if code == 2 else None
    ended = row.rank if code > 2 else None
    successor = _successor(row.id, row.successor) if row.successor else None
    attempt = row.attempt + (code == 2)
    message = _of_row(queue, row, STATES[code], attempt, row.holder, until)
    if ended is None and successor is None and row.stopping is None and row.progress is None:
        return message
    return msgspec.structs.replace(
        message,
        ended=ended,
        successor=successor,
        stopping=row.stopping,
        progress=_progress(row.progress) if row.progress else None,
    )


def _of_row(
    queue: str, row: Any, state: State, attempt: int, holder: str | None, until: int | None
) -> Message:
    return Message(
        row.id,
        queue,
        row.data,
        row.is_json,
        row.due,
        row.priority,
        attempt=attempt,
        attempts=row.attempts,
        state=state,
        expires=row.expires,
        group=row.group,
        headers=_headers(row.headers) if row.headers else None,
        failures=_failures(row.failures) if row.failures else (),
        holder=holder,
        until=until,
        planned=row.planned,
        created=row.created or None,
        asked=row.asked,
    )


class _Successor(msgspec.Struct, kw_only=True):
    """The column `successor` of a message."""

    due: int
    created: int
    priority: int
    attempts: int
    is_json: bool
    data: str
    """In hexadecimal digits, behind two characters."""
    expires: int | None = None
    group: str | None = None
    headers: str | None = None


_as_successor = msgspec.json.Decoder(_Successor).decode


def _successor(id: str, text: str) -> Item:
    read = _as_successor(text)
    return Item(
        id=id,
        data=bytes.fromhex(read.data[2:]),
        json=read.is_json,
        at=read.due,
        priority=read.priority,
        expires=read.expires,
        attempts=read.attempts,
        group=read.group,
        headers=_headers(read.headers) if read.headers else None,
        created=read.created,
    )


def is_readable(
    headers: str | None, failures: str | None, successor: str | None, progress: str | None
) -> bool:
    """Tell whether the texts of a row can be read."""
    try:
        if headers:
            _headers(headers)
        if failures:
            _failures(failures)
        if successor:
            _successor("", successor)
        if progress:
            _progress(progress)
    except DAMAGED:
        return False
    return True


def of_versions(batch: PostgresBatch, queue: str, versions: Mapping[str, str]) -> list[int]:
    """Lock messages, and return which of them are of the versions that are given by id."""
    rows = batch.call("_find", queue, texts(sorted(versions)), FOREVER, True, batch.now)
    return [row.seq for row in rows if message(queue, row, 0).version == versions[row.id]]


def claim(batch: PostgresBatch, command: cmd.Claim) -> Reply:
    """Lease up to `count` messages."""
    queue, floors = command.queue, batch.floors
    floor, begin = floors.of(queue), time.monotonic()
    rows = batch.call(
        "_claim",
        queue,
        batch.now,
        count=command.count,
        lease=command.lease,
        holder=command.holder,
        max_bytes=command.max_bytes,
        floor=floor,
        process=batch.waiter,
        **batch.identity,
    )
    if floor is None:
        floors.looked(queue, begin)
    end = rows[-1]
    batch.new_floors[queue] = end.floor
    batch.waits[queue] = (NEVER if end.due is None else end.due, end.until)
    rows.pop()
    moment = int(end.exactly)
    died = [Died(row.id, row.attempt, row.holder or "") for row in rows if row.data is None]
    rows = [row for row in rows if row.data is not None]
    limited, behind = end.attempt is not None, bool(end.attempt)
    (floors.limited.add if limited else floors.limited.discard)(queue)
    if not rows:
        due = end.due if end.planned is None else end.planned / 1000
        wait = None if due is None else max(0, due - end.exactly)
        following = 0 if behind else wait
        return Claimed([], 0, moment, following, died, limited=limited, behind=behind)
    rows.sort(key=attrgetter("floor") if limited else _rank)
    until = moment + command.lease
    messages: list[Message] = []
    damaged: list[str] = []
    for row in rows:
        try:
            messages.append(_of_row(queue, row, "leased", row.attempt, command.holder, until))
        except DAMAGED:
            damaged.append(row.id)
    if damaged:
        _bury(batch, command, damaged, end.token)
    if not messages:
        return Claimed([], 0, moment, 0, died, limited=limited, behind=behind)
    return Claimed(
        messages,
        end.token,
        moment,
        died=died,
        results=bool(end.expires),
        limited=limited,
        behind=behind,
    )


def held(batch: PostgresBatch, command: cmd.Claim, token: int, until: int) -> list[Message]:
    """Return the messages that an earlier claim still holds."""
    rows = batch.call("_held", command.queue, batch.now, token, until)
    rows.sort(key=_rank)
    return [
        _of_row(command.queue, row, "leased", row.attempt, command.holder, until) for row in rows
    ]


def _bury(batch: PostgresBatch, command: cmd.Claim, ids: list[str], token: int) -> None:
    """Make dead letters of messages whose rows cannot be read."""
    for id in ids:
        _log.error(
            "the row of message %r in queue %r cannot be read: it is a dead letter now",
            id,
            command.queue,
        )
    reason = msgspec.json.encode(UNREADABLE).decode()
    batch.call(
        "_change",
        "bury",
        command.queue,
        batch.now,
        ids=texts(ids),
        tokens=integers([token] * len(ids)),
        reason=reason,
    )


def _rank(row: Any) -> tuple[int, int, int]:
    return -row.priority, row.due, row.seq


def find(batch: PostgresBatch, command: cmd.Find) -> Reply:
    """Look at messages by id."""
    rows = batch.call("_find", command.queue, texts(command.ids), command.max_bytes, False, None)
    budget = Budget(command.max_bytes)
    messages: list[Message | None] = []
    rows.reverse()
    for id in command.ids:
        if not rows or rows[-1].id != id:
            messages.append(None)
            continue
        row = rows.pop()
        if not budget.takes(row.size):
            break
        messages.append(message(command.queue, row, row.now if batch.now is None else batch.now))
    return Found(messages)


def now_of(batch: PostgresBatch) -> int:
    """Return the time of a batch, in milliseconds."""
    if batch.now is not None:
        return batch.now
    ((moment,),) = batch.call("_moment", None)
    return int(moment)


def count(batch: PostgresBatch, command: cmd.Count) -> Counts:
    """Count by the counters."""
    read = batch.call.patiently if command.recount or command.stored else batch.call
    ((counts,),) = read("_count", command.queue, batch.now, command.recount, command.stored)
    batch.deltas = max(batch.deltas, counts["deltas"])
    return msgspec.convert(counts, Counts)


def history(batch: PostgresBatch, command: cmd.History) -> Reply:
    """Look at how messages with an id have ended."""
    (((state, rows),),) = batch.call("_history", command.queue, batch.now, command.id, KEPT_ENDS)
    ends = [
        End(
            how=ENDINGS[how],
            moment=moment,
            by=by,
            due=due,
            attempt=attempt,
            since=since,
            failures=msgspec.convert(failures or [], tuple[Failure, ...]),
            result=None if result is None else result.encode(),
        )
        for how, moment, by, due, attempt, since, failures, result in rows
    ]
    return Ends(None if state is None else STATES[state], within_budget(ends, command.max_bytes))


def is_awaited(command: cmd.History, reply: object) -> bool:
    """Whether the message has not ended, and the caller waits for that."""
    return command.watch and isinstance(reply, Ends) and reply.state in PENDING


def forecast(batch: PostgresBatch, command: cmd.ForecastCommand) -> Reply:
    """Count what falls due in each bucket."""
    ((forecasted,),) = batch.call.patiently(
        "_forecast", command.queue, batch.now, command.bucket, command.buckets
    )
    return msgspec.convert(forecasted, Forecasted)


def explain(batch: PostgresBatch, command: cmd.Explain) -> Reply:
    """Look at a message, its lease, its place among others, and the pauses of its queue."""
    ((facts,),) = batch.call("_explain", command.queue, batch.now, command.id, AHEAD + 1, PROMOTE)
    failures, report = _failures(facts.pop("failures", "[]")), facts.pop("progress", None)
    return msgspec.structs.replace(
        msgspec.convert(facts, Explained),
        failure=failures[-1] if failures else None,
        progress=None if report is None else _progress(report),
    )


def queues(batch: PostgresBatch, command: cmd.Queues) -> Reply:
    """Name the queues."""
    return Names([name for (name,) in batch.call("_queues", command.queue)])
