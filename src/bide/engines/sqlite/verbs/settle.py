"""Ack, which has statements for many messages, and bury, which has two lists of messages."""

from collections.abc import Sequence
from itertools import zip_longest

from bide.engines import message_verbs
from bide.engines.queue_rules import outcomes_of
from bide.engines.sqlite.records import Records, change_each
from bide.engines.sqlite.session import Session
from bide.engines.sqlite.tables import SQL, QueueRow, json_text
from bide.model.commands import Ack, Bury, Lease
from bide.model.ended import end_of
from bide.model.replies import Outcome, Outcomes

__all__ = ["ack", "bury"]


def ack(session: Session, command: Ack) -> Outcomes:
    """Delete messages, or keep them if the queue does."""
    queue = session.open(command.queue)
    seqs = _all_held(session, queue, command.leases)
    if not seqs:
        return change_each(session, command, command.leases, message_verbs.ack)
    if queue.remembers:
        _remember(session, queue, command, seqs)
    session.leave_lease(queue, seqs)
    session.run(SQL.drop_messages, (json_text(seqs),))
    queue.acked += len(seqs)
    done = [Outcome(lease.id, True) for lease in command.leases]
    return outcomes_of(done, Records(session, queue).opens(session.now))


def _remember(session: Session, queue: QueueRow, command: Ack, seqs: Sequence[int]) -> None:
    """Remember that leased messages are acked."""
    results = command.results if queue.result_ttl else []
    texts = [None if result is None else result.decode() for result in results]
    rows = json_text(list(zip_longest(seqs, texts)))
    bounds = {"rows": rows, "now": session.now, "history": bool(queue.history)}
    queue.ended += session.run(SQL.remember_acked, bounds).rowcount
    if queue.result_ttl:  # a caller may wait for the result
        session.ends += [end_of(queue.name, lease.id) for lease in command.leases]


def bury(session: Session, command: Bury) -> Outcomes:
    """Make dead letters of messages: by lease, then by id."""
    held = change_each(session, command, command.leases, message_verbs.bury)
    unheld = change_each(session, command, command.ids, message_verbs.set_aside)
    return Outcomes(held.outcomes + unheld.outcomes, held.wake)


def _all_held(session: Session, queue: QueueRow, leases: Sequence[Lease]) -> list[int]:
    """Return the messages of leases if all are good and their acks delete them; else none."""
    ids = [lease.id for lease in leases]
    if queue.keep or queue.successors or len(set(ids)) < len(ids):
        return []
    bounds = {"ids": json_text(ids), "queue": queue.id, "now": session.now}
    rows = session.run(SQL.held, bounds).fetchall()
    if [token for _, token in rows] != [lease.token for lease in leases]:
        return []
    return [seq for seq, _ in rows]
