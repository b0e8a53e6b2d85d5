"""Cancel, reschedule, edit, revive, purge, configure, delete: changes of what no worker holds."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import UNSET, structs

from bide.engines.sqlite.limits import set_limits
from bide.engines.sqlite.session import Session, Waiting
from bide.engines.sqlite.successors import drop, successors
from bide.engines.sqlite.tables import DEAD, SQL, Place, QueueRow, as_failures, bounds_of, json_text
from bide.model import commands as cmd
from bide.model.command_parts import Where, versions_of
from bide.model.message import IN_TRANSIT, STATES, State
from bide.model.rank import EVERYTHING
from bide.model.replies import PAUSES, Affected, Deleted, Outcome, Outcomes, Settings, Sizes
from bide.model.times import LIMITS

__all__ = ["cancel", "configure", "delete", "edit", "purge", "reschedule", "revive"]

May = Callable[[Place], bool]
"""Tells whether a message may be changed."""

Change = Callable[[QueueRow, list[Place]], list[Outcome]]


def change_each(
    session: Session, command: Any, names: Sequence[str | cmd.Lease], may: May, change: Change
) -> Outcomes:
    """Change the messages that may be changed; the outcomes of the others say where they are.

    Args:
        session: of the batch.
        command: to be executed; it may ask for versions.
        names: the ids or the leases of its messages; a lease must be valid.
        may: whether a message may be changed.
        change: changes some, and returns their outcomes.
    """
    queue, versions = session.open(command.queue), versions_of(command)
    ids = [name if isinstance(name, str) else name.id for name in names]
    tokens = [None if isinstance(name, str) else name.token for name in names]
    if queue is None:
        return Outcomes([Outcome(id, False) for id in ids])
    numbers = range(len(ids))
    # An id that is named twice: one after the other, as two commands would.
    parts = [numbers] if len(set(ids)) == len(ids) else [range(n, n + 1) for n in numbers]
    found: list[Outcome] = []
    for part in parts:
        places = session.locate(queue, [ids[n] for n in part])
        chosen = [
            place for n in part
            if (place := places.get(ids[n])) is not None and may(place)
            and tokens[n] in (None, place.token)
            and (not versions or versions[place.id] == session.version(queue, place.id))
        ]  # fmt: skip
        outcomes = {outcome.id: outcome for outcome in change(queue, chosen)} if chosen else {}
        for id in (ids[n] for n in part):
            outcome, place = outcomes.get(id), places.get(id)
            if outcome is None:
                outcome = place.outcome(False, session.now) if place else Outcome(id, False)
            found.append(outcome)
    return told(found)


def told(found: list[Outcome]) -> Outcomes:
    """Return the outcomes of a change, with when the first of its messages is due."""
    wakes = [
        o.due for o in found if o.done and o.state in ("delayed", "ready") and o.due is not None
    ]
    return Outcomes(found, min(wakes, default=None))


def _waits(place: Place) -> bool:
    return place.token is None and place.aside is None


def _is_dead(place: Place) -> bool:
    return place.aside == DEAD


def _waiting(places: Sequence[Place]) -> list[Waiting]:
    return [(place.seq, place.due, place.priority) for place in places]


def cancel(session: Session, command: cmd.Cancel) -> Outcomes | Affected:
    """Take messages back."""
    if command.where is not None:
        queue = session.look(command.queue) if command.dry_run else session.open(command.queue)
        if queue is None:
            return Affected(0)
        if command.dry_run:
            return Affected(_count_unheld(session, queue, command.where))
        rows = _unheld(session, queue, command.where)
        return _remove_all(session, queue, rows, "cancelled", command.actor)
    conditional = command.if_due is not None or versions_of(command)

    def may(place: Place) -> bool:
        if place.token is not None:  # its successor may go
            return not conditional
        return _waits(place) and command.if_due in (None, place.due)

    def remove(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        held = [place for place in places if place.token is not None]
        places = [place for place in places if place.token is None]
        gone = successors(session, queue, [place.id for place in held])
        drop(session, queue, list(gone))
        _remove(session, queue, _waiting(places), "cancelled", command.actor)
        return [Outcome(place.id, True, due=place.due) for place in places] + [
            structs.replace(place.outcome(False, session.now), successor=gone[place.id].at)
            for place in held if place.id in gone
        ]  # fmt: skip

    return change_each(session, command, command.ids, may, remove)


def _remove_all(
    session: Session,
    queue: QueueRow,
    rows: Sequence[Waiting],
    how: Literal["cancelled", "purged"],
    by: str | None,
) -> Affected:
    _remove(session, queue, rows[: cmd.BULK], how, by)
    return Affected(len(rows[: cmd.BULK]), more=len(rows) > cmd.BULK)


def _remove(
    session: Session,
    queue: QueueRow,
    rows: Sequence[Waiting],
    how: Literal["cancelled", "purged"],
    by: str | None,
) -> None:
    """Delete messages that wait, and count them."""
    seqs = [seq for seq, _, _ in rows]
    session.remember_ends(queue, seqs, how, by)
    session.leave_pending(queue, rows)
    session.delete(seqs)
    setattr(queue, how, getattr(queue, how) + len(rows))


def _count_unheld(session: Session, queue: QueueRow, where: Where) -> int:
    lists = [SQL.ready_between, SQL.delayed_between] if where.group is None else [SQL.of_group]
    bounds = {"queue": queue.id, "limit": EVERYTHING, **bounds_of(where)}
    return sum(
        session.run(f"SELECT count(*) FROM ({rows})", bounds).fetchone()[0] for rows in lists
    )


def _unheld(session: Session, queue: QueueRow, where: Where) -> list[Waiting]:
    """Return the first messages that wait and match a rule, one more than may be changed."""
    bounds = {"queue": queue.id, "limit": cmd.BULK + 1, **bounds_of(where)}
    if where.group is not None:
        return session.run(SQL.of_group, bounds).fetchall()
    ready = session.run(SQL.ready_between, bounds).fetchall() if queue.ready else []
    bounds["limit"] -= len(ready)
    return ready + session.run(SQL.delayed_between, bounds).fetchall()


def reschedule(session: Session, command: cmd.Reschedule) -> Outcomes:
    """Move messages to another due time."""
    due = session.now + command.delay if command.at is None else command.at

    def may(place: Place) -> bool:
        return _waits(place) and command.if_due in (None, place.due)

    def move(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_pending(queue, _waiting(places))
        session.run_many(SQL.reschedule, [(due, p.seq) for p in places])
        return _delayed(session, queue, places, due)

    return change_each(session, command, command.ids, may, move)


def _delayed(session: Session, queue: QueueRow, places: Sequence[Place], due: int) -> list[Outcome]:
    session.delay(queue, [(place.seq, due, place.priority) for place in places])
    state: State = "ready" if due <= session.now else "delayed"
    return [Outcome(place.id, True, state, due) for place in places]


def edit(session: Session, command: cmd.Edit) -> Outcomes:
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
        outcomes = []
        for place in places:
            new = place._replace(
                due=place.due if due is None else due,
                priority=values.get("priority", place.priority),
            )
            moves = place.aside is None and (
                due is not None
                or new.priority != place.priority
                or (queue.limited and "group" in values
                    and session.groups_of([place.seq])[place.seq] != values["group"])
            )  # fmt: skip
            ready = queue.ready
            if moves:
                session.leave_pending(queue, _waiting([place]))
            if changes:
                row = {**values, "due": due, "seq": place.seq}
                session.run(f"UPDATE bide_message SET {', '.join(changes)} WHERE seq = :seq", row)
            if moves and due is None and queue.ready < ready:
                session.ready(queue, [new])
            elif moves:
                session.delay(queue, _waiting([new]))
            outcomes.append(new.outcome(True, session.now))
        return outcomes

    return change_each(session, command, command.ids, may, change)


def _in_transit(session: Session, place: Place) -> bool:
    """Tell whether a move has made the message a dead letter: a change would be lost."""
    (text,) = session.run(SQL.failures, (place.seq,)).fetchone()
    return text is not None and as_failures(text)[-1].reason.startswith(IN_TRANSIT)


def revive(session: Session, command: cmd.Revive) -> Outcomes:
    """Let dead letters be handed out again."""
    due = session.now + command.delay

    def back(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.run(SQL.drop_aside, (json_text([place.seq for place in places]),))
        session.run_many(SQL.revive, [(due, place.seq) for place in places])
        queue.dead -= len(places)
        queue.revived += len(places)
        return _delayed(session, queue, places, due)

    return change_each(session, command, command.ids, _is_dead, back)


def set_aside(session: Session, command: cmd.Bury) -> Outcomes:
    """Make dead letters of messages that no worker holds."""

    def aside(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_pending(queue, _waiting(places))
        for place in places:
            session.set_aside(queue, place, command.reason, command.actor)
        return [Outcome(p.id, True, "dead", p.due, session.now) for p in places]

    return change_each(session, command, command.ids, _waits, aside)


def purge(session: Session, command: cmd.Purge) -> Outcomes | Affected:
    """Delete messages of a state."""
    if command.ids is not None:

        def remove(queue: QueueRow, places: list[Place]) -> list[Outcome]:
            _purge_aside(session, queue, DEAD, [place.seq for place in places], command.actor)
            return [Outcome(place.id, True, due=place.due) for place in places]

        return change_each(session, command, command.ids, _is_dead, remove)
    queue = session.open(command.queue)
    if queue is None:
        return Affected(0)
    before = EVERYTHING if command.before is None else command.before
    if command.state == "delayed":
        where = Where(after=session.now + 1, before=before)
        bounds = {"queue": queue.id, "limit": cmd.BULK + 1, **bounds_of(where)}
        rows = session.run(SQL.delayed_between, bounds).fetchall()
        return _remove_all(session, queue, rows, "purged", command.actor)
    if command.state == "ready":
        rows = _unheld(session, queue, Where(before=min(before, session.now + 1)))
        return _remove_all(session, queue, rows, "purged", command.actor)
    code = STATES.index(command.state)
    found = session.run(SQL.aside_before, (queue.id, code, before, cmd.BULK + 1)).fetchall()
    seqs = [seq for (seq,) in found[: cmd.BULK]]
    _purge_aside(session, queue, code, seqs, command.actor)
    return Affected(len(seqs), more=len(found) > cmd.BULK)


def _purge_aside(
    session: Session, queue: QueueRow, code: int, seqs: Sequence[int], actor: str | None
) -> None:
    if code == DEAD:
        session.remember_ends(queue, seqs, "purged", actor)
        queue.dead -= len(seqs)
        queue.purged += len(seqs)
    else:
        queue.kept -= len(seqs)
    session.run(SQL.drop_aside, (json_text(seqs),))
    session.delete(seqs)


def configure(session: Session, command: cmd.Configure) -> Settings:
    """Set what is given."""
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
    changed = set_limits(session, queue, command)
    wake = session.now if changed or resumed else None
    limits = [getattr(session.lines(queue).row, name) for name in LIMITS] if queue.limited else ()
    return Settings(bool(queue.paused), queue.keep, wake, queue.history, queue.result_ttl, *limits)


def delete(session: Session, command: cmd.Delete) -> Deleted:
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
