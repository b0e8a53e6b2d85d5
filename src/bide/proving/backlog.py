"""What is in the queue besides: a backlog before, the rest afterwards, and nothing at the end."""

import time
from collections.abc import Callable

from bide.model.errors import NotEmpty, StoreError
from bide.model.message import NewMessage, State
from bide.proving.plan import LEASE, MAX_DELAY, ProvingPlan, ProvingStopped
from bide.proving.workload import ATTEMPTS, PAUSE, PENDING_ID, claim, settle
from bide.queue.sync import Queue
from bide.testing.history import Journal

BATCH = 1_000
"""How many messages are put, claimed or named at a time."""

PENDING_DELAY = 86_400.0
"""Seconds until the messages of the backlog are due: longer than any run."""

DRAIN_LEASE = 60.0
"""The lease of what is drained, in seconds."""

PATIENCE = 120.0
"""Seconds within which a store has to answer again, and the messages have to come."""

REMOVALS = 10
"""How often it is tried to delete the queue, as leases end and messages become dead letters."""

Advance = Callable[[int], object]
"""Counts what was done."""


def fill(queue: Queue, plan: ProvingPlan, journal: Journal, advance: Advance) -> None:
    """Put the backlog: messages that are due after the run."""
    for start in range(0, plan.pending, BATCH):
        end = min(start + BATCH, plan.pending)
        ids = [PENDING_ID.format(number) for number in range(start, end)]
        journal.tries("put", ids=ids)
        outcomes = queue.put_many(
            [
                NewMessage(body={"id": id}, id=id, delay=PENDING_DELAY, attempts=ATTEMPTS)
                for id in ids
            ]
        )
        dues = [outcome.due for outcome in outcomes]
        journal.did("put", ids=[outcome.id for outcome in outcomes], dues=dues)
        advance(len(ids))


def drain(queue: Queue, journal: Journal, advance: Advance) -> None:
    """Take and ack everything but the backlog, as the leases of the killed processes end.

    Raises:
        ProvingStopped: the messages do not come, or the store does not answer any more.
    """
    deadline = time.monotonic() + PATIENCE + MAX_DELAY + LEASE
    failure = ""
    while time.monotonic() < deadline:
        deliveries = claim(queue, journal, BATCH, 0.5, DRAIN_LEASE)
        settle(journal, "ack", deliveries, queue.ack)
        advance(len(deliveries))
        if deliveries:
            deadline = time.monotonic() + PATIENCE
            continue
        try:
            if _is_drained(queue):
                return
        except StoreError as error:
            failure = f", the last error: {error}"
            time.sleep(PAUSE)
    raise ProvingStopped(
        f"messages are left, and no claim got one within {PATIENCE:g} s of the last{failure}"
    )


def _is_drained(queue: Queue) -> bool:
    """Return whether nothing is left but the backlog."""
    sizes = queue.counts().sizes
    if sizes.ready or sizes.leased:
        return False
    first = next(queue.scan("delayed", page=1), None)
    return first is None or first.due / 1_000 > time.time() + PENDING_DELAY / 2


def note_left(queue: Queue, journal: Journal, advance: Advance) -> None:
    """Write down which messages are still in the queue."""
    ids: list[str] = []
    for message in queue.scan(page=BATCH):
        ids.append(message.id)
        if len(ids) == BATCH:
            journal.did("left", ids=ids)
            advance(len(ids))
            ids = []
    journal.did("left", ids=ids)
    advance(len(ids))


def remove(queue: Queue) -> None:
    """Delete the queue with all that is in it.

    Raises:
        NotEmpty: something is put into it all the time.
        StoreError: the store does not answer.
    """
    states: tuple[State, ...] = ("delayed", "ready", "dead", "acked", "expired")
    for attempt in range(1, REMOVALS + 1):
        for message in queue.scan("leased"):
            queue.release(message.id)
        for state in states:
            queue.purge(state=state)
        try:
            queue.delete()
            return
        except NotEmpty:
            if attempt == REMOVALS:
                raise
            time.sleep(PAUSE)
