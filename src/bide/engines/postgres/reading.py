"""Claim, find, count, forecast, queues: from rows to messages and figures."""

import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from bide.engines.cursor import Budget
from bide.engines.ended_pages import LOOKED_AT, EndPosition, EndSpan, ended_page
from bide.engines.postgres.arrays import integers, texts
from bide.engines.postgres.batch import NEVER, PostgresBatch, Wait
from bide.logs import logger
from bide.model import commands as cmd
from bide.model.ended import ENDINGS, KEPT_ENDS, PENDING, End, Ended, within_budget
from bide.model.message import (
    STATES,
    UNREADABLE,
    Failure,
    Item,
    Message,
    Progress,
    State,
    unreadable,
)
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
from bide.model.times import MICROSECONDS

DAMAGED = (ValueError, TypeError, msgspec.MsgspecError)
"""What reading a row raises that bide has not written so."""

_SHOWN_COLUMNS = (
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
    "rule",
    "run",
)
"""What a dead letter shows of a row that cannot be read."""

_DELAYED, _READY, _LEASED = map(STATES.index, ("delayed", "ready", "leased"))
"""States by their numbers in SQL."""

FOREVER = 1 << 53
"""Above all due times, and above all sizes in bytes."""

_headers = msgspec.json.Decoder(dict[str, str]).decode
_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
_progress = msgspec.json.Decoder(Progress).decode

_log = logger("bide.postgres")


class _ClaimEnd(NamedTuple):
    """What the last row of a claim says, which is no message: see `_claim` in the schema."""

    clock: float
    """The server's time at the claim, in Unix milliseconds with fractions."""
    token: Any
    """The token of the leases; `None`: nothing was claimed."""
    claim_again: int | None
    """When to claim again, in Unix milliseconds; `None`: not before a put. Not known if messages
    were claimed."""
    claim_again_us: int | None
    """The same in microseconds, of a queue with limits."""
    sleeps_until: int | None
    """Until when others assume that this process sleeps; `None`: it has to store that."""
    is_limited: bool
    is_behind: bool
    """Whether more is due in a limited queue than could be put into lines."""
    keeps_results: bool
    floor: list[int | None]
    """Where the next claim begins."""

    @classmethod
    def of(cls, row: Any) -> "_ClaimEnd":
        """Return the meaning of the columns, whose names are those of a message's."""
        return cls(
            clock=row.exactly,
            token=row.token,
            claim_again=row.due,
            claim_again_us=row.planned,
            sleeps_until=row.until,
            is_limited=row.attempt is not None,
            is_behind=bool(row.attempt),
            keeps_results=bool(row.expires),
            floor=row.floor,
        )

    @property
    def wait(self) -> float | None:
        """In how many milliseconds to claim again; `None`: not before a put."""
        if self.is_behind:
            return 0
        moment: float | None = self.claim_again
        if self.claim_again_us is not None:
            moment = self.claim_again_us / MICROSECONDS
        return None if moment is None else max(0, moment - self.clock)


def message(queue: str, row: Any, now: int) -> Message:
    """Return a row as a message; as a dead letter if it cannot be read."""
    try:
        return _message(queue, row, now)
    except DAMAGED:
        columns = repr({name: getattr(row, name) for name in _SHOWN_COLUMNS})
        return unreadable(queue, row.id, columns.encode(), now)


def _message(queue: str, row: Any, now: int) -> Message:
    """Return a row of the view `_message`. Raises one of `DAMAGED` if it cannot be read.

    Args:
        queue: its queue.
        row: all columns of the view.
        now: the time in Unix milliseconds, by which a delayed message may be ready.
    """
    state: int = row.state
    if state == _DELAYED and row.due <= now:
        state = _READY
    # The rank of a leased message is when its lease ends, and that of one that ended is when.
    until = row.rank if state == _LEASED else None
    ended = row.rank if state > _LEASED else None
    successor = _successor(row.id, row.successor) if row.successor else None
    attempt = row.attempt  # how many have ended
    if state == _LEASED:
        attempt += 1
    message = _of_row(queue, row, STATES[state], attempt, row.holder, until)
    if ended is None and successor is None and row.stopping is None and row.progress is None:
        return message  # most messages: to replace fields makes a second object
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
    """Return a message with the fields that a claim and a read tell in the same way.

    Args:
        queue: its queue.
        row: with the columns that are read below.
        state: its state.
        attempt: the number of the attempt under way, or of the last one.
        holder: who has leased it.
        until: when the lease ends, in Unix milliseconds.
    """
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
    ).with_rule(row.rule, row.run)


class _Successor(msgspec.Struct, kw_only=True):
    """The column `successor` of a message."""

    due: int
    created: int
    priority: int
    attempts: int
    is_json: bool
    data: str
    """In hexadecimal digits, behind `\\x`."""
    expires: int | None = None
    group: str | None = None
    headers: str | None = None
    rule: str | None = None
    run: str | None = None


_as_successor = msgspec.json.Decoder(_Successor).decode


def _successor(id: str, text: str) -> Item:
    """Return the successor of a message with this id, of the text in the column."""
    successor = _as_successor(text)
    return Item(
        id=id,
        data=bytes.fromhex(successor.data.removeprefix("\\x")),
        json=successor.is_json,
        at=successor.due,
        priority=successor.priority,
        expires=successor.expires,
        attempts=successor.attempts,
        group=successor.group,
        headers=_headers(successor.headers) if successor.headers else None,
        created=successor.created,
        rule=successor.rule,
        run=successor.run,
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
    """Lock messages, and return which of them have the versions that are given by id.

    They are named by `seq`: that of a message which is deleted and put again is another one.
    """
    ids, lock = texts(sorted(versions)), True
    rows = batch.call("_find", queue, ids, FOREVER, lock, batch.now)
    return [row.seq for row in rows if message(queue, row, 0).version == versions[row.id]]


def claim(batch: PostgresBatch, command: cmd.Claim) -> Reply:
    """Lease up to `count` messages. Those that cannot be read become dead letters."""
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
        waiter=batch.waiter,
        **batch.identity,
    )
    if floor is None:
        floors.looked(queue, begin)
    end = _ClaimEnd.of(rows.pop())
    batch.new_floors[queue] = end.floor
    sleep_until = NEVER if end.claim_again is None else end.claim_again
    batch.waits[queue] = Wait(sleep_until, end.sleeps_until)
    if end.is_limited:
        floors.limited.add(queue)
    else:
        floors.limited.discard(queue)
    moment = int(end.clock)
    # A row without a body is no message: it tells of one that died when its last lease ended.
    died = [Died(row.id, row.attempt, row.holder or "") for row in rows if row.data is None]
    rows = [row for row in rows if row.data is not None]
    if not rows:
        return Claimed([], 0, moment, end.wait, died, limited=end.is_limited, behind=end.is_behind)
    # The rows come in any order. In a limited queue the column `floor` has that of serving.
    rows.sort(key=attrgetter("floor") if end.is_limited else _rank)
    until = moment + command.lease
    messages: list[Message] = []
    damaged_ids: list[str] = []
    for row in rows:
        try:
            messages.append(_of_row(queue, row, "leased", row.attempt, command.holder, until))
        except DAMAGED:
            damaged_ids.append(row.id)
    if damaged_ids:
        _bury(batch, command, damaged_ids, end.token)
    if not messages:  # all of them were damaged: there may be others
        return Claimed([], 0, moment, 0, died, limited=end.is_limited, behind=end.is_behind)
    return Claimed(
        messages,
        end.token,
        moment,
        died=died,
        results=end.keeps_results,
        limited=end.is_limited,
        behind=end.is_behind,
    )


def still_leased(batch: PostgresBatch, command: cmd.Claim, token: int, until: int) -> list[Message]:
    """Return the messages of an earlier claim whose leases still last.

    Args:
        batch: calls the function.
        command: the claim.
        token: that of its leases.
        until: when they end, in Unix milliseconds. One that was extended is left out.
    """
    rows = batch.call("_held", command.queue, batch.now, token, until)
    rows.sort(key=_rank)
    return [
        _of_row(command.queue, row, "leased", row.attempt, command.holder, until) for row in rows
    ]


def _bury(batch: PostgresBatch, command: cmd.Claim, ids: list[str], token: int) -> None:
    """Make dead letters of messages that a claim has leased and whose rows cannot be read."""
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
        how="dead",
    )


def _rank(row: Any) -> tuple[int, int, int]:
    """Return by what the messages of a claim are sorted."""
    return -row.priority, row.due, row.seq


def find(batch: PostgresBatch, command: cmd.Find) -> Reply:
    """Look at messages by id."""
    ids, lock = texts(command.ids), False
    rows = batch.call("_find", command.queue, ids, command.max_bytes, lock, None)
    budget = Budget(command.max_bytes)
    messages: list[Message | None] = []
    # Rows come in the order of the ids; there is none for an id that does not exist. If they are
    # too large together, the last row is one that does not fit.
    next_row = iter(rows)
    row = next(next_row, None)
    for id in command.ids:
        if row is None or row.id != id:
            messages.append(None)
            continue
        if not budget.takes(row.size):
            break
        now = row.now if batch.now is None else batch.now
        messages.append(message(command.queue, row, now))
        row = next(next_row, None)
    return Found(messages)


def now_of(batch: PostgresBatch) -> int:
    """Return the time of a batch, in milliseconds."""
    if batch.now is not None:
        return batch.now
    ((moment,),) = batch.call("_moment", None)
    return int(moment)


def count(batch: PostgresBatch, command: cmd.Count) -> Counts:
    """Count by the counters; with `recount` or `stored`, read all messages as well."""
    read = batch.call.patiently if command.recount or command.stored else batch.call
    ((counts,),) = read("_count", command.queue, batch.now, command.recount, command.stored)
    batch.deltas = max(batch.deltas, counts["deltas"])
    return msgspec.convert(counts, Counts)


def history(batch: PostgresBatch, command: cmd.History) -> Reply:
    """Look at how messages with an id have ended."""
    ((answer,),) = batch.call("_history", command.queue, batch.now, command.id, KEPT_ENDS)
    state, rows = answer  # the state is null if no message has this id now
    ends = [
        End(**_end_fields(*row), result=None if result is None else result.encode())
        for *row, result in rows
    ]
    return Ends(None if state is None else STATES[state], within_budget(ends, command.max_bytes))


def _end_fields(
    how: int,
    moment: int,
    by: str | None,
    due: int,
    attempt: int,
    since: int | None,
    failures: list[Any] | None,
) -> dict[str, Any]:
    """Return the fields of an end, of the columns in JSON that tell it."""
    return {
        "how": ENDINGS[how],
        "moment": moment,
        "by": by,
        "due": due,
        "attempt": attempt,
        "since": since,
        "failures": msgspec.convert(failures or [], tuple[Failure, ...]),
    }


def list_ended(batch: PostgresBatch, command: cmd.ListEnded) -> Reply:
    """Look at a page of the messages that have ended."""
    span = EndSpan.of(command, remembered_since=-1)  # the server knows since when it remembers
    how = None if command.how is None else ENDINGS.index(command.how)
    ((answer,),) = batch.call(
        "_last_ends",
        command.queue,
        batch.now,
        how=how,
        first=span.first,
        before=span.before,
        moment=span.behind.moment,
        id=span.behind.id,
        limit=command.limit,
        most=LOOKED_AT,
        max_bytes=command.max_bytes,
    )
    rows, place = answer
    messages = [_as_ended(*row) for row in rows]
    return ended_page(command, messages if place is None else [*messages, EndPosition(*place)])


def _as_ended(id: str, how: int, moment: int, *columns: Any) -> Ended:
    """Return an entry of a list of ended messages, of the columns that tell the end."""
    try:
        return Ended(id=id, **_end_fields(how, moment, *columns))
    except (*DAMAGED, IndexError):
        return Ended.unreadable(id, moment)


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
    # Failures and reports are JSON within JSON: texts of the row.
    failures, report = _failures(facts.pop("failures", "[]")), facts.pop("progress", None)
    return msgspec.structs.replace(
        msgspec.convert(facts, Explained),
        failure=failures[-1] if failures else None,
        progress=None if report is None else _progress(report),
    )


def queues(batch: PostgresBatch, command: cmd.Queues) -> Reply:
    """Name the queues."""
    return Names([name for (name,) in batch.call("_queues", command.queue)])
