"""Find, scan, count, forecast, queues: what reads and changes nothing."""

import sqlite3
from typing import Any

from bide.engines.cursor import BEGIN, Budget, Phase, cursor_after, phases_of, position
from bide.engines.sqlite.rows import DELAYED, READY, Place, QueueRow, as_failures, as_row, bounds_of
from bide.engines.sqlite.session import HOUR, Session, json_text
from bide.engines.sqlite.statements import SQL
from bide.engines.sqlite.successors import with_successors
from bide.model.commands import Count, Find, Forecast, History, Queues, Scan, Where
from bide.model.ended import ENDINGS, KEPT_ENDS, End, within_budget
from bide.model.errors import InvalidArgument
from bide.model.identity import range_of_ids
from bide.model.limits import MAX_NAME
from bide.model.message import STATES, Message
from bide.model.rank import EVERYTHING, delayed_reach, forecast_start
from bide.model.replies import Counts, Ends, Flow, Forecasted, Found, Names, Page, Sizes
from bide.model.times import LIMITS

__all__ = ["count", "find", "forecast", "history", "queues", "scan"]

_BY_ID = "id:"
_BEHIND_IDS = "\U0010ffff" * MAX_NAME
_WEIGHT = 1 << 42  # what one step of priority adds to the rank of a ready message


def find(session: Session, command: Find) -> Found:
    """Look at messages by id."""
    queue = session.look(command.queue)
    if queue is None:
        return Found([None] * len(command.ids))
    bounds = {"queue": queue.id, "ids": json_text(command.ids)}
    rows = map(as_row, session.run(SQL.find, bounds))
    budget = Budget(command.max_bytes)
    found: list[Message | None] = []
    row = next(rows, None)
    for id in command.ids:
        if row is None or row.id != id:
            found.append(None)
            continue
        if not budget.takes(row.size):
            break
        found.append(row.message(command.queue, session.now))
        row = next(rows, None)
    if queue.successors:
        there = iter(with_successors(session, queue, [one for one in found if one is not None]))
        found = [None if one is None else next(there) for one in found]
    return Found(found)


def scan(session: Session, command: Scan) -> Page:
    """Look at a page of messages."""
    page = _page(session, command)
    queue = session.look(command.queue)
    if queue is None or not queue.successors:
        return page
    return Page(with_successors(session, queue, page.messages), page.cursor)


def _page(session: Session, command: Scan) -> Page:
    phases = phases_of(command)
    if phases[0].state is None and (command.where is None or command.where.group is None):
        return _scan_by_id(session, command)
    number, after = position(command.cursor)
    queue = session.look(command.queue)
    if queue is None:
        return Page([], None)
    budget = Budget(command.max_bytes)
    found: list[Message] = []
    last = cursor_after(number, *after)
    for index in range(number, len(phases)):
        start = after if index == number else (-1, -1)
        left = command.limit - len(found)
        rows = _phase(session, queue, phases[index], start, command.where, left)
        for row in map(as_row, rows):
            if not budget.takes(row.size):
                rows.close()
                return Page(found, last)
            found.append(row.message(command.queue, session.now))
            last = cursor_after(index, row.rank, row.seq)
        if len(found) == command.limit:
            return Page(found, last)
    return Page(found, None)


def _scan_by_id(session: Session, command: Scan) -> Page:
    cursor = _BY_ID if command.cursor in (None, BEGIN) else str(command.cursor)
    if not cursor.startswith(_BY_ID):
        raise InvalidArgument(f"cursor={cursor!r} comes from no scan of all; begin without one")
    queue = session.look(command.queue)
    if queue is None:
        return Page([], None)
    first, last = range_of_ids(command.prefix or "", cursor.removeprefix(_BY_ID))
    bounds = {
        "queue": queue.id,
        "first": first,
        "last": last or _BEHIND_IDS,
        "limit": command.limit,
    }
    rows = session.run(SQL.scan_all, bounds)
    budget = Budget(command.max_bytes)
    found: list[Message] = []
    for row in map(as_row, rows):
        if not budget.takes(row.size):
            rows.close()
            return Page(found, _BY_ID + found[-1].id)
        found.append(row.message(command.queue, session.now))
    return Page(found, _BY_ID + found[-1].id if len(found) == command.limit else None)


def _phase(
    session: Session,
    queue: QueueRow,
    phase: Phase,
    after: tuple[int, int],
    where: Where | None,
    limit: int,
) -> sqlite3.Cursor:
    bounds: dict[str, Any] = {
        "queue": queue.id,
        "rank": after[0],
        "seq": after[1],
        "limit": limit,
        **bounds_of(where),
    }
    match phase.state:
        case None:
            return session.run(SQL.scan_group, bounds)
        case "delayed" | "ready":
            bounds |= {"state": STATES.index(phase.state), "reach": EVERYTHING}
            if phase.state == "delayed":
                bounds |= _reach(session, bounds, phase)
            return session.run(SQL.scan_pending, bounds)
        case "leased":
            return session.run(SQL.scan_leased, bounds)
        case _:
            bounds["state"] = STATES.index(phase.state)
            return session.run(SQL.scan_aside, bounds)


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
    if queue is None:
        empty = Sizes() if command.recount else None
        strays, stored = 0 if command.recount else None, 0 if command.stored else None
        return Counts(Sizes(), Flow(), recount=empty, strays=strays, stored=stored)
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
        **_limits(session, queue),
    )


def _limits(session: Session, queue: QueueRow) -> dict[str, int]:
    """Return the limits of a queue, if it has any."""
    row = session.lines(queue).row if queue.limited else None
    return {name: getattr(row, name) for name in LIMITS} if row is not None else {}


def _oldest(session: Session, queue: QueueRow, due: int) -> int | None:
    """Return the earliest due moment among what is due: the first of each weight is its oldest."""
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
    """Count the messages themselves, and those that stand nowhere or twice."""
    pending = dict(session.run(SQL.recount_pending, (queue.id,)).fetchall())
    (leased,) = session.run(SQL.recount_leased, (queue.id,)).fetchone()
    aside = dict(session.run(SQL.recount_aside, (queue.id,)).fetchall())
    total, strays = session.run(SQL.recount_messages, (queue.id,)).fetchone()
    delayed, ready = pending.get(DELAYED, 0), pending.get(READY, 0)
    if queue.limited:
        leased_by_group = session.run(SQL.leased_by_group, (queue.id,))
        strays += session.lines(queue).strays(ready, leased_by_group)
    dead = aside.get(STATES.index("dead"), 0)
    kept = sum(aside.values()) - dead
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
    if queue is None:
        return Forecasted(forecast_start(now, bucket), 0, [0] * buckets, 0)
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
    (hours[first],) = session.run(SQL.count_due_between, (queue.id, *reach)).fetchone()
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
    """Name the queues."""
    rows = session.run(SQL.queue_names, {"prefix": command.queue})
    return Names([name for (name,) in rows])


def _stored(session: Session, queue: QueueRow) -> int:
    parts = (SQL.stored, SQL.stored_successors, SQL.stored_ends)
    return sum(int(session.run(part, (queue.id,)).fetchone()[0]) for part in parts)


def history(session: Session, command: History) -> Ends:
    """Look at how messages with an id have ended."""
    queue = session.look(command.queue)
    if queue is None:
        return Ends(None, [])
    row = session.run(SQL.locate, (queue.id, json_text([command.id]))).fetchone()
    state = None if row is None else Place(*row).state(session.now)
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
