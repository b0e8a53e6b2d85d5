"""Extend, ack, retry, bury: what the holder of a lease may say; and release, for operators."""

from collections.abc import Sequence

from bide.engines.sqlite.limits import freed
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.successors import followed
from bide.engines.sqlite.tables import ACKED, SQL, Place, QueueRow, json_text
from bide.engines.sqlite.verbs.edit import Change, change_each, set_aside
from bide.model.commands import Ack, Bury, Extend, Lease, Release, Retry
from bide.model.replies import Outcome, Outcomes

__all__ = ["ack", "bury", "extend", "release", "retry"]


def _is_held(place: Place) -> bool:
    return place.token is not None


def _settled(session: Session, command: Ack | Bury | Retry, end: Change) -> Outcomes:
    """End the leases that are good."""
    done = change_each(session, command, command.leases, _is_held, _then(session, end))
    return freed(session, command.queue, done)


def _then(session: Session, end: Change) -> Change:
    """Return a change that ends leases, and lets successors follow."""

    def change(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        outcomes = end(queue, places)
        now = followed(session, queue, places)
        return [now.get(outcome.id, outcome) for outcome in outcomes]

    return change


def extend(session: Session, command: Extend) -> Outcomes:
    """Move the times at which leases expire."""
    until = session.now + command.lease

    def move(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.run_many(SQL.extend, [(until, place.seq) for place in places])
        return [place._replace(until=until).outcome(True, session.now) for place in places]

    return change_each(session, command, command.leases, _is_held, move)


def ack(session: Session, command: Ack) -> Outcomes:
    """Let messages leave the queue, or remember them where the queue keeps."""
    queue = session.open(command.queue)
    if queue is not None and not (queue.keep or queue.remembers or queue.successors):
        seqs = _all_held(session, queue, command.leases)
        if seqs is not None:
            _gone(session, queue, seqs)
            done = Outcomes([Outcome(lease.id, True) for lease in command.leases])
            return freed(session, command.queue, done)

    results: dict[tuple[str, int | None], bytes | None] = {}
    for lease, result in zip(command.leases, command.results, strict=False):
        results.setdefault((lease.id, lease.token), result)

    def leave(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        seqs = [place.seq for place in places]
        mine = [results.get((place.id, place.token)) for place in places] if results else ()
        session.remember_ends(queue, seqs, "acked", None, mine)
        if not queue.keep:
            _gone(session, queue, seqs)
            return [Outcome(place.id, True) for place in places]
        session.leave_lease(queue, seqs)
        queue.acked += len(seqs)
        session.end(queue, seqs, ACKED)
        session.run_many(SQL.count_attempt, [(p.attempt + 1, p.seq) for p in places])
        return [Outcome(p.id, True, "acked", p.due, session.now) for p in places]

    return _settled(session, command, leave)


def _all_held(session: Session, queue: QueueRow, leases: Sequence[Lease]) -> list[int] | None:
    """Return the messages of leases that are all good, as they mostly are; `None` if one is not."""
    ids = [lease.id for lease in leases]
    if len(set(ids)) < len(ids):
        return None
    bounds = {"ids": json_text(ids), "queue": queue.id, "now": session.now}
    rows = session.run(SQL.held, bounds).fetchall()
    if [token for _, token in rows] != [lease.token for lease in leases]:
        return None
    return [seq for seq, _ in rows]


def _gone(session: Session, queue: QueueRow, seqs: Sequence[int]) -> None:
    session.leave_lease(queue, seqs)
    session.delete(seqs)
    queue.acked += len(seqs)


def retry(session: Session, command: Retry) -> Outcomes:
    """Let messages be handed out again, later."""
    due = session.now + command.delay

    def again(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_lease(queue, [place.seq for place in places])
        return [one(queue, place._replace(token=None, until=None)) for place in places]

    def one(queue: QueueRow, place: Place) -> Outcome:
        if command.release and not command.delay:
            session.ready(queue, [place])
            return place._replace(holder=None).outcome(True, session.now)
        if not command.release:
            if not session.failed(queue, place, command.reason, session.now):
                return Outcome(place.id, True, "dead", place.due, session.now)
            queue.retried += 1
        # The time at which it expires stays the same.
        expires = place.expires if place.expires is None else place.expires - (due - place.due)
        session.run(SQL.move_due, (due, expires, place.seq))
        session.delay(queue, [(place.seq, due, place.priority)])
        return place._replace(due=due, holder=None).outcome(True, session.now)

    return _settled(session, command, again)


def release(session: Session, command: Release) -> Outcomes:
    """End leases of any holder."""

    def end(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_lease(queue, [place.seq for place in places])
        outcomes = []
        for place in places:
            if session.failed(queue, place, command.reason, session.now):
                queue.retried += 1
                session.ready(queue, [place])
                free = place._replace(token=None, until=None, holder=None)
                outcomes.append(free.outcome(True, session.now))
            else:
                outcomes.append(Outcome(place.id, True, "dead", place.due, session.now))
        return outcomes

    held = change_each(session, command, command.ids, _is_held, _then(session, end))
    return freed(session, command.queue, held)


def bury(session: Session, command: Bury) -> Outcomes:
    """Set messages aside as dead letters: by lease, then by id."""

    def aside(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_lease(queue, [place.seq for place in places])
        for place in places:
            session.failed(queue, place, command.reason, session.now, final=True)
        return [Outcome(p.id, True, "dead", p.due, session.now) for p in places]

    held = _settled(session, command, aside)
    unheld = set_aside(session, command)
    return Outcomes(held.outcomes + unheld.outcomes, held.wake)
