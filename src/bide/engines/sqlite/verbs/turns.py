"""Claims of a limited queue, in which groups take turns; and its limits."""

from typing import NamedTuple

from bide.engines.cursor import Budget
from bide.engines.sqlite.rows import DELAYED, READY, MessageRow, QueueRow, as_row
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.statements import SQL
from bide.model.commands import Claim, Configure
from bide.model.rank import (
    EVERYTHING,
    LOOK_GROUPS,
    LOOK_MESSAGES,
    LOOK_MOST,
    PROMOTE,
    delayed_reach,
    ready_rank,
)
from bide.model.replies import Outcomes
from bide.model.times import LIMITS

__all__ = ["Grant", "freed", "is_behind", "promote", "rebuild", "set_limits", "take_turns"]


class Grant(NamedTuple):
    """What all messages of one claim get."""

    token: int
    since: int
    until: int
    holder: str


def promote(session: Session, queue: QueueRow, limit: int, due: int) -> None:
    """Make up to `limit` delayed messages ready, up to the rank `due`."""
    last = session.run(SQL.nth_due, (queue.id, due, limit - 1)).fetchone() or (due, EVERYTHING)
    bounds = {"queue": queue.id, "rank": last[0], "seq": last[1]}
    if queue.limited and queue.delayed:
        session.lines(queue).enter(session.run(SQL.due_groups, bounds).fetchall())
    moved = session.run(SQL.promote, bounds).rowcount
    if moved:
        session.run(SQL.drop_picked, {**bounds, "state": DELAYED})
        queue.delayed -= moved
        queue.ready += moved


def _look_ahead(session: Session, queue: QueueRow, due: int) -> None:
    """Make the first due message ready of each group that has no line: see `bide.model.rank`."""
    row = session.lines(queue).row
    groups = session.run(SQL.groups_after, {"queue": queue.id, "after": row.looked})
    found: list[tuple[int, int, int, str]] = []
    seen = 0
    row.looked = ""
    for count, (group, has_line) in enumerate(groups, 1):
        if not has_line:
            bounds = queue.id, group, LOOK_MOST + 1
            messages = session.run(SQL.of_one_group, bounds).fetchall()
            seen += len(messages)
            ranks = [(_ready(rank), seq, rank) for rank, seq in messages if rank and rank <= due]
            if ranks and len(messages) <= LOOK_MOST:
                ready, seq, rank = min(ranks)
                found.append((rank, seq, ready, group))
        if count == LOOK_GROUPS or seen >= LOOK_MESSAGES:
            row.looked = group
            break
    groups.close()
    found.sort()
    session.lines(queue).enter([(group, ready, seq) for _, seq, ready, group in found])
    session.run_many(SQL.drop_pending, [(queue.id, DELAYED, rank, seq) for rank, seq, *_ in found])
    session.run_many(SQL.insert_pending, [(queue.id, READY, r, seq) for _, seq, r, _ in found])
    queue.delayed -= len(found)
    queue.ready += len(found)


def _ready(rank: int) -> int:
    """Return the rank as a ready message of a delayed one."""
    return ready_rank(rank >> 8, 255 - (rank & 255))


def take_turns(
    session: Session, queue: QueueRow, command: Claim, reach: int, grant: Grant
) -> tuple[list[MessageRow], list[int]]:
    """Lease up to `count` messages, as their groups take turns.

    Returns:
        The messages, and when the last limit let each go.
    """
    lines = session.lines(queue)
    lines.line_up(PROMOTE)
    promote(session, queue, reach, delayed_reach(session.now))
    count = command.count if command.slots is None else min(command.count, command.slots)
    if count and lines.open and is_behind(session, queue):
        _look_ahead(session, queue, delayed_reach(session.now))
    lines.wake()
    budget = Budget(command.max_bytes)
    good: list[MessageRow] = []
    late: list[MessageRow] = []
    freed: list[int] = []
    while len(good) < count and len(good) + len(late) < reach:
        group = lines.next()
        if group is None:
            break
        row = as_row(session.run(SQL.head, (queue.id, group.key)).fetchone())
        if row.expires is not None and session.now > row.due + row.expires:
            late.append(row)
        elif budget.takes(row.size):
            freed.append(lines.freed(group.key, row.due))
            lines.start(group.key)
            good.append(row)
        else:
            break
        lines.leave(group.key, row.rank, row.seq)
    session.expire(queue, [row.seq for row in late])
    left = good + late
    session.run_many(SQL.insert_lease, [(row.seq, queue.id, *grant) for row in good])
    session.run_many(SQL.drop_pending, [(queue.id, READY, row.rank, row.seq) for row in left])
    session.count_hours(queue, [row.due for row in left], gone=True)
    queue.ready -= len(left)
    return good, freed


def is_behind(session: Session, queue: QueueRow) -> bool:
    """Tell whether due messages stand in no line yet."""
    if session.lines(queue).row.rank is not None:
        return True
    due = delayed_reach(session.now)
    return session.run(SQL.nth_due, (queue.id, due, 0)).fetchone() is not None


def freed(session: Session, name: str, found: Outcomes) -> Outcomes:
    """Return the outcomes of what ends leases; in a limited queue others may be claimed now."""
    queue = session.look(name)
    if queue is None or not queue.limited or queue.paused:
        return found
    if not any(outcome.done and outcome.state != "leased" for outcome in found.outcomes):
        return found
    lines = session.lines(queue)
    opens = lines.opens()
    if opens is None:
        return found
    moment = -(-opens // 1000) if opens > lines.now else session.now
    return Outcomes(found.outcomes, moment if found.wake is None else min(found.wake, moment))


def set_limits(session: Session, queue: QueueRow, command: Configure) -> bool:
    """Change the limits that are given; return whether one has changed."""
    given = {name: value for name in LIMITS if (value := getattr(command, name)) is not None}
    if not (queue.limited or any(given.values())):
        return False
    lines = session.lines(queue)
    row = lines.row
    before, was_full = [getattr(row, name) for name in LIMITS], lines.full
    for name, value in given.items():
        setattr(row, name, value)
    if [getattr(row, name) for name in LIMITS] == before:
        return False
    if not any(getattr(row, name) for name in LIMITS):
        session.drop_lines(queue)
        queue.limited = 0
        return True
    if queue.limited:
        if was_full and not lines.full:
            row.freed = lines.now // 1000
        if "group_limit" in given:
            lines.restand()
        return True
    queue.limited = 1
    lines.begin(session.run(SQL.leased_by_group, (queue.id,)))
    return True


def rebuild(session: Session, queue: QueueRow) -> None:
    """Make the lines of a limited queue again, from its messages; its groups take new turns."""
    before = session.lines(queue).row
    session.drop_lines(queue)
    lines = session.lines(queue)
    for name in (*LIMITS, "last"):
        setattr(lines.row, name, getattr(before, name))
    lines.begin(session.run(SQL.leased_by_group, (queue.id,)))
