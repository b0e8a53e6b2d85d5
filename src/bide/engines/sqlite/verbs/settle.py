"""Extend, ack, retry, bury: what the holder of a lease may say; and release, for operators."""

from collections.abc import Callable, Sequence

from bide.engines.sqlite.rows import ACKED, Place, QueueRow
from bide.engines.sqlite.session import Session, json_text
from bide.engines.sqlite.statements import SQL
from bide.engines.sqlite.successors import followed
from bide.engines.sqlite.verbs.edit import changed, edit_each, set_aside
from bide.engines.sqlite.verbs.turns import freed
from bide.model.commands import Ack, Bury, Extend, Lease, Release, Retry
from bide.model.replies import Outcome, Outcomes

__all__ = ["ack", "bury", "extend", "release", "retry"]

Settle = Callable[[QueueRow, list[Place]], list[Outcome]]


def _held(session: Session, name: str, leases: Sequence[Lease], settle: Settle) -> Outcomes:
    """Settle the messages whose lease is good; tell of the others where they stand."""
    queue = session.open(name)
    if queue is None:
        return Outcomes([Outcome(lease.id, False) for lease in leases])
    if len({lease.id for lease in leases}) == len(leases):
        found = _settled(session, queue, leases, settle)
    else:  # a message named twice: one after the other, as two commands would
        found = [out for lease in leases for out in _settled(session, queue, [lease], settle)]
    return freed(session, name, changed(found))


def _settled(
    session: Session, queue: QueueRow, leases: Sequence[Lease], settle: Settle
) -> list[Outcome]:
    places = session.locate(queue, [lease.id for lease in leases])
    answers: list[Outcome | None] = []
    good: list[Place] = []
    for lease in leases:
        place = places.get(lease.id)
        if place is None:
            answers.append(Outcome(lease.id, False))
        elif place.token != lease.token:
            answers.append(place.outcome(False, session.now))
        else:
            answers.append(None)
            good.append(place)
    settled = iter(settle(queue, good) if good else ())
    return [next(settled) if answer is None else answer for answer in answers]


def extend(session: Session, command: Extend) -> Outcomes:
    """Move the moments at which leases lapse."""
    until = session.now + command.lease

    def move(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.run_many(SQL.extend, [(until, place.seq) for place in places])
        return [place._replace(until=until).outcome(True, session.now) for place in places]

    return _held(session, command.queue, command.leases, move)


def ack(session: Session, command: Ack) -> Outcomes:
    """Let messages leave the queue, or remember them where the queue keeps."""

    queue = session.open(command.queue)
    seqs = _all_held(session, queue, command.leases) if queue is not None else None
    if queue is not None and seqs is not None and not _looks_back(queue):
        _gone(session, queue, seqs)
        return freed(
            session, command.queue, Outcomes([Outcome(lease.id, True) for lease in command.leases])
        )

    results: dict[tuple[str, int | None], bytes | None] = {}
    for lease, result in zip(command.leases, command.results, strict=False):
        results.setdefault((lease.id, lease.token), result)

    def leave(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        seqs = [place.seq for place in places]
        mine = [results.get((place.id, place.token)) for place in places] if results else ()
        session.remember_ends(queue, seqs, "acked", None, mine)
        if not queue.keep:
            _gone(session, queue, seqs)
            return _then(session, queue, places, [Outcome(place.id, True) for place in places])
        session.leave_lease(queue, seqs)
        queue.acked += len(seqs)
        session.end(queue, seqs, ACKED)
        session.run_many(SQL.count_attempt, [(p.attempt + 1, p.seq) for p in places])
        outcomes = [Outcome(p.id, True, "acked", p.due, session.now) for p in places]
        return _then(session, queue, places, outcomes)

    return _held(session, command.queue, command.leases, leave)


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


def _looks_back(queue: QueueRow) -> bool:
    """Whether an ack leaves something of a message, or has a successor follow."""
    return bool(queue.keep or queue.remembers or queue.successors)


def _then(
    session: Session, queue: QueueRow, places: list[Place], outcomes: list[Outcome]
) -> list[Outcome]:
    """Let successors follow messages whose leases have ended; return how it is then."""
    now = followed(session, queue, places) if queue.successors else {}
    return [now.get(outcome.id, outcome) for outcome in outcomes]


def _gone(session: Session, queue: QueueRow, seqs: Sequence[int]) -> None:
    session.leave_lease(queue, seqs)
    session.delete(seqs)
    queue.acked += len(seqs)


def retry(session: Session, command: Retry) -> Outcomes:
    """Let messages be handed out again, later."""
    due = session.now + command.delay

    def again(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_lease(queue, [place.seq for place in places])
        outcomes = [one(queue, place._replace(token=None, until=None)) for place in places]
        return _then(session, queue, places, outcomes)

    def one(queue: QueueRow, place: Place) -> Outcome:
        if command.release and not command.delay:
            session.ready(queue, [place])
            return place._replace(holder=None).outcome(True, session.now)
        if not command.release:
            if not session.failed(queue, place, command.reason, session.now):
                return Outcome(place.id, True, "dead", place.due, session.now)
            queue.retried += 1
        # The moment from which on it is too late stays where it is.
        expires = place.expires if place.expires is None else place.expires - (due - place.due)
        session.run(SQL.move_due, (due, expires, place.seq))
        session.delay(queue, due, place.priority, place.seq)
        return place._replace(due=due, holder=None).outcome(True, session.now)

    return _held(session, command.queue, command.leases, again)


def release(session: Session, command: Release) -> Outcomes:
    """End leases, whoever has them."""

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
        return _then(session, queue, places, outcomes)

    def is_held(place: Place) -> bool:
        return place.token is not None

    return freed(session, command.queue, edit_each(session, command, is_held, end))


def bury(session: Session, command: Bury) -> Outcomes:
    """Set messages aside as dead letters: by lease, then by id."""

    def aside(queue: QueueRow, places: list[Place]) -> list[Outcome]:
        session.leave_lease(queue, [place.seq for place in places])
        for place in places:
            session.failed(queue, place, command.reason, session.now, final=True)
        dead = [Outcome(p.id, True, "dead", p.due, session.now) for p in places]
        return _then(session, queue, places, dead)

    held = _held(session, command.queue, command.leases, aside)
    if not command.ids:
        return held
    unheld = set_aside(session, command)
    return Outcomes(held.outcomes + unheld.outcomes, held.wake)
