"""Find, scan, count, forecast, queues, history, explain: what reads and changes nothing."""

import sqlite3
from collections.abc import Iterator
from itertools import starmap
from typing import Any

from bide.engines.cursor import BEGIN, Budget, Phase, cursor_after, phases_of, position
from bide.engines.sqlite.records import Records
from bide.engines.sqlite.session import HOUR, Session
from bide.engines.sqlite.tables import (
    ACKED,
    DEAD,
    DELAYED,
    EXPIRED,
    READY,
    SQL,
    MessageRow,
    QueueRow,
    as_failures,
    as_item,
    bounds_of,
)
from bide.model.commands import Count, Explain, Find, Forecast, History, Queues, Scan
from bide.model.ended import ENDINGS, KEPT_ENDS, End, within_budget
from bide.model.errors import InvalidArgument
from bide.model.identity import range_of_ids
from bide.model.limits import MAX_NAME
from bide.model.message import STATES, Message, stored_size
from bide.model.rank import (
    EVERYTHING,
    delayed_reach,
    forecast_start,
)
from bide.model.replies import (
    Counts,
    Ends,
    Explained,
    Forecasted,
    Found,
    Names,
    Page,
    Sizes,
)
from bide.model.times import LIMITS

__all__ = ["count", "explain", "find", "forecast", "history", "queues", "scan"]

_BY_ID = "id:"
_BEHIND_IDS = "\U0010ffff" * MAX_NAME
_WEIGHT = 1 << 42  # what one step of priority adds to the rank of a ready message


def find(session: Session, command: Find) -> Found:
    """Return messages by id."""
    queue = session.look(command.queue)
    budget = Budget(command.max_bytes)
    found: list[Message | None] = []
    for id in command.ids:
        columns = session.run(SQL.find, (queue.id, id)).fetchone()
        if columns is None:
            found.append(None)
            continue
        row = MessageRow(*columns)
        if not budget.takes(row.size):
            break
        found.append(row.message(command.queue, session.now))
    return Found(found)


def scan(session: Session, command: Scan) -> Page:
    """Return a page of messages."""
    queue = session.look(command.queue)
    budget = Budget(command.max_bytes)
    found: list[Message] = []
    more = None
    for row, cursor in _walk(session, queue, command):
        if not budget.takes(row.size):
            break
        found.append(row.message(command.queue, session.now))
        more = cursor
        if len(found) == command.limit:
            break
    else:
        more = None
    return Page(found, more)


def _walk(session: Session, queue: QueueRow, command: Scan) -> Iterator[tuple[MessageRow, str]]:
    """Yield messages, each with the cursor of the page that begins behind it."""
    phases = phases_of(command)
    if phases[0].state is None and (command.where is None or command.where.group is None):
        begin = _BY_ID if command.cursor in (None, BEGIN) else str(command.cursor)
        if not begin.startswith(_BY_ID):
            raise InvalidArgument(f"cursor={begin!r} comes from no scan of all; begin without one")
        first, last = range_of_ids(command.prefix or "", begin.removeprefix(_BY_ID))
        bounds = (queue.id, first, last or _BEHIND_IDS, command.limit)
        for row in starmap(MessageRow, session.run(SQL.scan_all, bounds)):
            yield row, _BY_ID + row.id
        return
    number, after = position(command.cursor)
    for index in range(number, len(phases)):
        start = after if index == number else (-1, -1)
        for row in starmap(MessageRow, _phase(session, queue, phases[index], start, command)):
            yield row, cursor_after(index, row.rank, row.seq)


def _phase(
    session: Session, queue: QueueRow, phase: Phase, after: tuple[int, int], command: Scan
) -> sqlite3.Cursor:
    bounds: dict[str, Any] = {
        "queue": queue.id, "rank": after[0], "seq": after[1], "limit": command.limit,
        "reach": EVERYTHING, **bounds_of(command.where),
    }  # fmt: skip
    if phase.state is None:
        return session.run(SQL.scan_group, bounds)
    if phase.state == "leased":
        return session.run(SQL.scan_leased, bounds)
    bounds["state"] = STATES.index(phase.state)
    if phase.state not in ("delayed", "ready"):
        return session.run(SQL.scan_aside, bounds)
    if phase.state == "delayed":
        bounds |= _reach(session, bounds, phase)
    return session.run(SQL.scan_pending, bounds)


def _reach(session: Session, bounds: dict[str, Any], phase: Phase) -> dict[str, int]:
    """Narrow a scan of the delayed ones to the ranks that its rule leaves."""
    now = delayed_reach(session.now)
    first = max(bounds["rank"], bounds["after"] * 256 - 1)
    last = min(EVERYTHING, bounds["before"] * 256 - 1)
    if phase.due is True:
        last = min(last, now)
    if phase.due is False:
        first = max(first, now)
    seq = bounds["seq"] if first == bounds["rank"] else EVERYTHING
    return {"rank": first, "reach": last, "seq": seq}


def count(session: Session, command: Count) -> Counts:
    """Count by the counters; what is due of the delayed ones by their ranks."""
    queue = session.look(command.queue)
    due = session.count_due(queue)
    sizes = Sizes(queue.delayed - due, queue.ready + due, queue.leased, queue.dead)
    recount, strays = _recount(session, queue, due) if command.recount else (None, None)
    return Counts(
        sizes,
        queue.flow(),
        kept=queue.kept,
        paused=bool(queue.paused),
        keep=queue.keep,
        history=queue.history,
        result_ttl=queue.result_ttl,
        oldest=_oldest(session, queue, due),
        recount=recount,
        strays=strays,
        stored=_stored(session, queue) if command.stored else None,
        **{name: getattr(session.lines(queue).row, name) for name in LIMITS if queue.limited},
    )


def _oldest(session: Session, queue: QueueRow, due: int) -> int | None:
    """Return the earliest due time of due messages: the first of each weight is its oldest."""
    moments: list[int] = []
    if due:
        moments.append(session.run(SQL.next_due, (queue.id,)).fetchone()[0])
    rank = 0
    while queue.ready:
        row = session.run(SQL.oldest_ready, (queue.id, rank)).fetchone()
        if row is None:
            break
        moments.append(row[0] % _WEIGHT)
        rank = (row[0] // _WEIGHT + 1) * _WEIGHT
    return min(moments, default=None)


def _recount(session: Session, queue: QueueRow, due: int) -> tuple[Sizes, int]:
    """Count the messages themselves, and those that are in no place or in two."""
    pending = dict(session.run(SQL.recount_pending, (queue.id,)).fetchall())
    (leased,) = session.run(SQL.recount_leased, (queue.id,)).fetchone()
    aside = dict(session.run(SQL.recount_aside, (queue.id,)).fetchall())
    total, strays = session.run(SQL.recount_messages, (queue.id,)).fetchone()
    delayed, ready = pending.get(DELAYED, 0), pending.get(READY, 0)
    if queue.limited:
        leased_by_group = session.run(SQL.leased_by_group, (queue.id,))
        strays += session.lines(queue).strays(ready, leased_by_group)
    dead, kept = aside.get(DEAD, 0), aside.get(ACKED, 0) + aside.get(EXPIRED, 0)
    places = sum(pending.values()) + leased + sum(aside.values())
    strays += abs(places - total) + abs(kept - queue.kept)
    counted = session.hours(queue)
    successors, lost = session.run(SQL.recount_successors, (queue.id,)).fetchone()
    strays += abs(successors - queue.successors) + lost
    counted.subtract(hour for (hour,) in session.run(SQL.recount_hours, (queue.id,)))
    strays += sum(map(abs, counted.values()))
    return Sizes(delayed - due, ready + due, leased, dead), strays


def forecast(session: Session, command: Forecast) -> Forecasted:
    """Count what falls due in each bucket."""
    now, bucket, buckets = session.now, command.bucket, command.buckets
    queue = session.look(command.queue)
    start = forecast_start(now, bucket)
    if bucket % HOUR == 0:
        return _forecast_by_hours(session, queue, start, command)
    bounds = {
        "queue": queue.id,
        "start": start,
        "bucket": bucket,
        "first": delayed_reach(now),
        "last": delayed_reach(start + bucket * buckets),
    }
    counted = dict(session.run(SQL.forecast, bounds).fetchall())
    counts = [counted.get(number, 0) for number in range(buckets)]
    due = session.count_due(queue)
    return Forecasted(start, queue.ready + due, counts, queue.delayed - due - sum(counts))


def _forecast_by_hours(
    session: Session, queue: QueueRow, start: int, command: Forecast
) -> Forecasted:
    """Count by the counters of hours; only the hour that has begun is counted by its messages."""
    first = start // HOUR + 1
    hours = session.hours(queue)
    reach = delayed_reach(session.now), delayed_reach(first * HOUR)
    hours[first] = session.count_between(queue, *reach)
    counts = [0] * command.buckets
    later = 0
    for hour, count in hours.items():
        number = (hour - first) * HOUR // command.bucket
        if number >= command.buckets:
            later += count
        elif number >= 0:
            counts[number] += count
    waiting = queue.delayed + queue.ready
    return Forecasted(start, waiting - sum(counts) - later, counts, later)


def queues(session: Session, command: Queues) -> Names:
    """Return the names of the queues."""
    rows = session.run(SQL.queue_names, {"prefix": command.queue})
    return Names([name for (name,) in rows])


def _stored(session: Session, queue: QueueRow) -> int:
    items = [as_item(text) for (text,) in session.run(SQL.all_successors, (queue.id,))]
    parts = (session.run(part, (queue.id,)).fetchone()[0] for part in (SQL.stored, SQL.stored_ends))
    return sum(map(int, parts)) + sum(map(stored_size, items))


def history(session: Session, command: History) -> Ends:
    """Return how messages with an id have ended."""
    queue = session.look(command.queue)
    found = Records(session, queue).load([command.id])
    state = found[0].seen(session.now) if found else None
    if not queue.ended:
        return Ends(state, [])
    bounds = {
        "queue": queue.id, "id": command.id, "since": session.now - queue.remembers,
        "fresh": session.now - queue.result_ttl, "limit": KEPT_ENDS,
    }  # fmt: skip
    ends = [
        End(
            ENDINGS[how], moment, by, due, attempt, since,
            as_failures(failures) if failures else (),
            None if result is None else result.encode(),
        )
        for how, moment, by, due, attempt, since, failures, result in session.run(SQL.ends, bounds)
    ]  # fmt: skip
    return Ends(state, within_budget(ends, command.max_bytes))


def explain(session: Session, command: Explain) -> Explained:
    """Return the state of a message, its place among others, and the pauses of its queue."""
    queue = session.look(command.queue)
    records = Records(session, queue)
    records.load([] if command.id is None else [command.id])
    return records.explain(command.id, session.now)
