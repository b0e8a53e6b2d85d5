"""Cancel, reschedule, edit, revive, purge, configure, delete: changes of what no worker holds."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, structs

from bide.engines.sqlite.rows import DEAD, Place, QueueRow, as_failures, bounds_of
from bide.engines.sqlite.session import Session, json_text
from bide.engines.sqlite.statements import SQL
from bide.engines.sqlite.successors import drop, successors
from bide.engines.sqlite.verbs.turns import set_limits
from bide.model.commands import (
    BULK,
    Bury,
    Cancel,
    Configure,
    Delete,
    Edit,
    Purge,
    Reschedule,
    Revive,
    Where,
)
from bide.model.message import IN_TRANSIT, STATES
from bide.model.rank import EVERYTHING
from bide.model.replies import PAUSES, Affected, Deleted, Outcome, Outcomes, Settings, Sizes
from bide.model.times import LIMITS
from bide.model.versions import ById, versions_of

__all__ = [
    "cancel", "changed", "configure", "delete", "edit", "edit_each", "purge", "reschedule",
    "revive", "set_aside",
]  # fmt: skip

_Pending = tuple[int, int, int]
"""seq, due, priority"""

May = Callable[[Place], bool]
Change = Callable[[QueueRow, list[Place]], list[Outcome]]


def edit_each(session: Session, command: ById, may: May, change: Change) -> Outcomes:
    """Change the messages that may be changed; the outcomes of the others say where they are."""
    ids, wanted = command.ids or (), versions_of(command)
    queue = session.open(command.queue)
    if queue is None:
        return Outcomes([Outcome(id, False) for id in ids])
    # An id that is named twice: one after the other, as two commands would.
    parts = [ids] if len(set(ids)) == len(ids) else [[id] for id in ids]
    found: list[Outcome] = []
    for part in parts:
        places = session.locate(queue, part)
        versions = session.versions(queue, list(places)) if wanted else {}
        chosen = [
            place for place in places.values()
            if may(place) and wanted.get(place.id) in (None, versions.get(place.id))
        ]  # fmt: skip
        outcomes = {outcome.id: outcome for outcome in change(queue, chosen)} if chosen else {}
        for id in part:
            outcome, place = outcomes.get(id), places.get(id)
            if outcome is None:
                outcome = place.outcome(False, session.now) if place else Outcome(id, False)
            found.append(outcome)
    return changed(found)


def changed(found: list[Outcome]) -> Outcomes:
    """Return the outcomes of a change, with when the first of its messages is due."""
    wakes = [
        o.due for o in found if o.done and o.state in ("delayed", "ready") and o.due is not None
    ]
    return Outcomes(found, min(wakes, default=None))


def _still(command: Cancel | Reschedule) -> May:
    """Return what tells of a message whether it waits, and is due when the caller saw."""
    return lambda place: _waits(place) and command.if_due in (None, place.due)


def _is_dead(place: Place) -> bool:
    return place.aside == DEAD


def _waits(place: Place) -> bool:
    return place.token is None and place.aside is None


def cancel(session: Session, command: Cancel) -> Outcomes | Affected:
    """Take messages back."""
    if command.where is not None:
        return _cancel_where(session, command, command.where)

    def remove(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        held = [place for place in places if place.token is not None]
        places = [place for place in places if place.token is None]
        refused = _forsake(session, queue, held)
        session.remember_ends(queue, [p.seq for p in places], "cancelled", command.actor)
        _remove(session, queue, [(p.seq, p.due, p.priority) for p in places])
        queue.cancelled += len(places)
        return refused + [Outcome(place.id, True, due=place.due) for place in places]

    still, wanted = _still(command), versions_of(command)

    def may(place: Place) -> bool:
        if place.token is None:
            return still(place)
        return command.if_due is None and not wanted

    return edit_each(session, command, may, remove)


def _forsake(session: Session, queue: QueueRow, places: list[Place]) -> list[Outcome]:
    """Delete the successors of leased messages; tell of those that had one."""
    gone = successors(session, queue, [place.id for place in places])
    drop(session, queue, list(gone))
    return [
        structs.replace(place.outcome(False, session.now), successor=gone[place.id].at)
        for place in places if place.id in gone
    ]  # fmt: skip


def _cancel_where(session: Session, command: Cancel, where: Where) -> Affected:
    queue = session.look(command.queue) if command.dry_run else session.open(command.queue)
    if queue is None:
        return Affected(0)
    if command.dry_run:
        return Affected(_count_unheld(session, queue, where))
    rows = _unheld(session, queue, where, BULK + 1)
    session.remember_ends(queue, [seq for seq, _, _ in rows[:BULK]], "cancelled", command.actor)
    _remove(session, queue, rows[:BULK])
    queue.cancelled += len(rows[:BULK])
    return Affected(len(rows[:BULK]), more=len(rows) > BULK)


def _bounds(queue: QueueRow, where: Where, limit: int) -> dict[str, Any]:
    return {"queue": queue.id, "limit": limit, **bounds_of(where)}


def _count_unheld(session: Session, queue: QueueRow, where: Where) -> int:
    lists = [SQL.ready_between, SQL.delayed_between] if where.group is None else [SQL.of_group]
    bounds = _bounds(queue, where, EVERYTHING)
    return sum(
        session.run(f"SELECT count(*) FROM ({rows})", bounds).fetchone()[0] for rows in lists
    )


def _unheld(session: Session, queue: QueueRow, where: Where, limit: int) -> list[_Pending]:
    bounds = _bounds(queue, where, limit)
    if where.group is not None:
        return session.run(SQL.of_group, bounds).fetchall()
    ready = session.run(SQL.ready_between, bounds).fetchall() if queue.ready else []
    bounds["limit"] = limit - len(ready)
    return ready + session.run(SQL.delayed_between, bounds).fetchall()


def _remove(session: Session, queue: QueueRow, rows: Sequence[_Pending]) -> None:
    session.leave_pending(queue, rows)
    session.delete([seq for seq, _, _ in rows])


def reschedule(session: Session, command: Reschedule) -> Outcomes:
    """Move messages to another moment."""
    due = session.now + command.delay if command.at is None else command.at

    def move(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_pending(queue, [(p.seq, p.due, p.priority) for p in places])
        session.run_many(SQL.reschedule, [(due, p.seq) for p in places])
        return _delayed(session, queue, places, due)

    return edit_each(session, command, _still(command), move)


def edit(session: Session, command: Edit) -> Outcomes:
    """Change what is named of messages."""
    due = command.due(session.now)
    values: dict[str, Any] = command.options
    if values.get("headers") is not None:
        values["headers"] = json_text(values["headers"])
    if command.data is not UNSET:
        values["data"] = command.data.decode() if command.json else command.data
    changes = [f'"{name}" = :{name}' for name in values if name != "expires"]
    if due is not None:
        changes += ["due = :due", "planned = NULL", "asked = NULL"]
    expires = ":expires" if "expires" in values else "expires + due - coalesce(planned, due)"
    if "expires" in values and due is None:  # a retry keeps the time at which it expires
        expires += " + coalesce(planned, due) - due"
    if "expires" in values or due is not None:
        changes.append(f"expires = {expires}")

    def may(place: Place) -> bool:
        return _waits(place) or (
            _is_dead(place) and due is None and not _in_transit(session, place)
        )

    def change(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        queue.weighted = int(queue.weighted or bool(values.get("priority")))
        for place in places:
            moves = place.aside is None and _moves(session, queue, place, due, values)
            ready = queue.ready
            if moves:
                session.leave_pending(queue, [(place.seq, place.due, place.priority)])
            if changes:
                row = {**values, "due": due, "seq": place.seq}
                session.run(f"UPDATE bide_message SET {', '.join(changes)} WHERE seq = :seq", row)
            if moves:
                new = place._replace(priority=values.get("priority", place.priority))
                if due is None and queue.ready < ready:
                    session.ready(queue, [new])
                else:
                    session.delay(queue, place.due if due is None else due, new.priority, new.seq)
        moved = [place._replace(due=place.due if due is None else due) for place in places]
        return [place.outcome(True, session.now) for place in moved]

    return edit_each(session, command, may, change)


def _in_transit(session: Session, place: Place) -> bool:
    """Tell whether a move has made the message a dead letter: a change would be lost."""
    (text,) = session.run(SQL.failures, (place.seq,)).fetchone()
    return text is not None and as_failures(text)[-1].reason.startswith(IN_TRANSIT)


def _moves(
    session: Session, queue: QueueRow, place: Place, due: int | None, values: dict[str, Any]
) -> bool:
    """Tell whether a message that waits gets another place among the others."""
    if due is not None or values.get("priority", place.priority) != place.priority:
        return True
    if not queue.limited or "group" not in values:
        return False
    return bool(session.groups_of([place.seq])[place.seq] != values["group"])


def revive(session: Session, command: Revive) -> Outcomes:
    """Let dead letters be handed out again."""
    due = session.now + command.delay

    def back(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.run(SQL.drop_aside, (json_text([place.seq for place in places]),))
        session.run_many(SQL.revive, [(due, place.seq) for place in places])
        queue.dead -= len(places)
        queue.revived += len(places)
        return _delayed(session, queue, places, due)

    return edit_each(session, command, _is_dead, back)


def _delayed(session: Session, queue: QueueRow, places: Sequence[Place], due: int) -> list[Outcome]:
    state = "ready" if due <= session.now else "delayed"
    for place in places:
        session.delay(queue, due, place.priority, place.seq)
    return [Outcome(place.id, True, state, due) for place in places]  # type: ignore[arg-type]


def set_aside(session: Session, command: Bury) -> Outcomes:
    """Make dead letters of messages that nobody holds."""

    def aside(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_pending(queue, [(p.seq, p.due, p.priority) for p in places])
        session.taken_aside(places, command.reason)
        session.remember_ends(queue, [place.seq for place in places], "dead", command.actor)
        session.end(queue, [place.seq for place in places], DEAD)
        queue.died += len(places)
        return [Outcome(p.id, True, "dead", p.due, session.now) for p in places]

    return edit_each(session, command, _waits, aside)


def _purge_by_id(session: Session, command: Purge) -> Outcomes:
    def remove(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        _purge_aside(session, queue, DEAD, [place.seq for place in places], command.actor)
        return [Outcome(place.id, True, due=place.due) for place in places]

    return edit_each(session, command, _is_dead, remove)


def purge(session: Session, command: Purge) -> Outcomes | Affected:
    """Delete messages of a state."""
    if command.ids is not None:
        return _purge_by_id(session, command)
    queue = session.open(command.queue)
    if queue is None:
        return Affected(0)
    before = EVERYTHING if command.before is None else command.before
    if command.state in ("delayed", "ready"):
        rows = _of_state(session, queue, command.state, before)
        seqs = [seq for seq, _, _ in rows[:BULK]]
        session.remember_ends(queue, seqs, "purged", command.actor)
        _remove(session, queue, rows[:BULK])
        count = len(rows[:BULK])
        queue.purged += count
        return Affected(count, more=len(rows) > BULK)
    code = STATES.index(command.state)
    found = session.run(SQL.aside_before, (queue.id, code, before, BULK + 1)).fetchall()
    seqs = [seq for (seq,) in found[:BULK]]
    _purge_aside(session, queue, code, seqs, command.actor)
    return Affected(len(seqs), more=len(found) > BULK)


def _purge_aside(
    session: Session, queue: QueueRow, code: int, seqs: Sequence[int], actor: str | None
) -> None:
    if code == DEAD:
        session.remember_ends(queue, seqs, "purged", actor)
    session.run(SQL.drop_aside, (json_text(seqs),))
    session.delete(seqs)
    if code == DEAD:
        queue.dead -= len(seqs)
        queue.purged += len(seqs)
    else:
        queue.kept -= len(seqs)


def _of_state(session: Session, queue: QueueRow, state: str, before: int) -> list[_Pending]:
    now = session.now
    if state == "delayed":
        bounds = _bounds(queue, Where(after=now + 1, before=before), BULK + 1)
        return session.run(SQL.delayed_between, bounds).fetchall()
    return _unheld(session, queue, Where(before=min(before, now + 1)), BULK + 1)


def configure(session: Session, command: Configure) -> Settings:
    """Set what is given."""
    queue = session.make(command.queue)
    resumed = bool(queue.paused) and command.paused is False
    if command.paused is not None:
        if command.paused and not queue.paused:
            session.run(SQL.begin_pause, (queue.id, session.now, command.actor))
            session.run(SQL.forget_pauses, {"queue": queue.id, "count": PAUSES})
        if resumed:
            session.run(SQL.end_pause, (session.now, queue.id))
        queue.paused = int(command.paused)
    for name in ("keep", "history", "result_ttl"):
        if (value := getattr(command, name)) is not None:
            setattr(queue, name, value)
    changed = set_limits(session, queue, command)
    wake = session.now if changed or resumed else None
    limits = [getattr(session.lines(queue).row, name) for name in LIMITS] if queue.limited else ()
    return Settings(bool(queue.paused), queue.keep, wake, queue.history, queue.result_ttl, *limits)


def delete(session: Session, command: Delete) -> Deleted:
    """Delete a queue if it is empty."""
    queue = session.open(command.queue)
    if queue is None:
        return Deleted(False)
    due = session.count_due(queue)
    sizes = Sizes(queue.delayed - due, queue.ready + due, queue.leased, queue.dead)
    if sizes != Sizes() or queue.kept:
        return Deleted(False, sizes, queue.kept)
    session.forget_queue(queue)
    return Deleted(True)
