"""Cancel, purge, configure, delete: commands for a rule, a state or a whole queue."""

from typing import Any

from bide.engines import message_verbs
from bide.engines.sqlite.records import Records, change_each
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import SQL, QueueRow, bounds_of
from bide.model import commands as cmd
from bide.model.command_parts import Where
from bide.model.message import STATES
from bide.model.rank import EVERYTHING
from bide.model.replies import PAUSES, Affected, Deleted, Outcomes, Settings, Sizes
from bide.model.times import LIMITS

__all__ = ["cancel", "configure", "delete", "purge"]


def cancel(session: Session, command: cmd.Cancel) -> Outcomes | Affected:
    """Cancel messages by id or by a rule."""
    if command.where is None:
        return change_each(session, command, command.ids, message_verbs.cancel)
    queue = session.look(command.queue) if command.dry_run else session.open(command.queue)
    if command.dry_run:
        return Affected(_count_unheld(session, queue, command.where))
    records = Records(session, queue)
    found = records.each_row(_unheld(session, queue, command.where))
    return records.finish_all(found, "cancelled", command.actor, session.now)


def _count_unheld(session: Session, queue: QueueRow, where: Where) -> int:
    lists = [SQL.ready_between, SQL.delayed_between] if where.group is None else [SQL.of_group]
    bounds = {"queue": queue.id, "limit": EVERYTHING, **bounds_of(where)}
    return sum(
        session.run(f"SELECT count(*) FROM ({rows})", bounds).fetchone()[0] for rows in lists
    )


def _unheld(session: Session, queue: QueueRow, where: Where) -> list[int]:
    """Return the first messages that wait and match a rule, one more than may be changed."""
    bounds = {"queue": queue.id, "limit": cmd.BULK + 1, **bounds_of(where)}
    if where.group is not None:
        return _seqs(session, SQL.of_group, bounds)
    ready = _seqs(session, SQL.ready_between, bounds) if queue.ready else []
    bounds["limit"] -= len(ready)
    return ready + _seqs(session, SQL.delayed_between, bounds)


def _seqs(session: Session, statement: str, bounds: Any) -> list[int]:
    return [seq for (seq,) in session.run(statement, bounds)]


def purge(session: Session, command: cmd.Purge) -> Outcomes | Affected:
    """Delete messages of a state."""
    if command.ids is not None:
        return change_each(session, command, command.ids, message_verbs.purge)
    queue = session.open(command.queue)
    before = EVERYTHING if command.before is None else command.before
    if command.state == "ready":
        seqs = _unheld(session, queue, Where(before=min(before, session.now + 1)))
    elif command.state == "delayed":
        where = Where(after=session.now + 1, before=before)
        bounds = {"queue": queue.id, "limit": cmd.BULK + 1, **bounds_of(where)}
        seqs = _seqs(session, SQL.delayed_between, bounds)
    else:
        code = STATES.index(command.state)
        seqs = _seqs(session, SQL.aside_before, (queue.id, code, before, cmd.BULK + 1))
    records = Records(session, queue)
    return records.finish_all(records.each_row(seqs), "purged", command.actor, session.now)


def configure(session: Session, command: cmd.Configure) -> Settings:
    """Change the settings that are given."""
    queue = session.make(command.queue)
    resumed = bool(queue.paused) and command.paused is False
    if command.paused and not queue.paused:
        session.run(SQL.begin_pause, (queue.id, session.now, command.actor))
        session.run(SQL.forget_pauses, {"queue": queue.id, "count": PAUSES})
    if resumed:
        session.run(SQL.end_pause, (session.now, queue.id))
    for name in ("paused", "keep", "history", "result_ttl"):
        if (value := getattr(command, name)) is not None:
            setattr(queue, name, int(value))
    changed = session.lines(queue).configure(command)
    wake = session.now if changed or resumed else None
    limits = (getattr(session.lines(queue).limits, name) for name in LIMITS)
    return Settings(bool(queue.paused), queue.keep, wake, queue.history, queue.result_ttl, *limits)


def delete(session: Session, command: cmd.Delete) -> Deleted:
    """Delete a queue if it is empty."""
    queue = session.open(command.queue)
    if not queue.id:
        return Deleted(False)
    due = session.count_due(queue)
    sizes = Sizes(queue.delayed - due, queue.ready + due, queue.leased, queue.dead)
    if sizes != Sizes() or queue.kept:
        return Deleted(False, sizes, queue.kept)
    session.forget_queue(queue)
    return Deleted(True)
