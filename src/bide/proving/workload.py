"""What each process does: put, cancel, reschedule, claim, ack and give back, until it is killed."""

import itertools
import os
import platform
import random
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from bide.model.errors import AccessDenied, StoreError
from bide.model.message import NewMessage
from bide.model.replies import Outcome
from bide.proving.plan import LEASE, MAX_DELAY
from bide.queue.delivery import Delivery
from bide.queue.sync import Queue
from bide.testing.history import Journal

ATTEMPTS = 10_000
"""So many that no message becomes a dead letter, however often its holder is killed."""

CHANGEABLE = 200
"""How many of its last messages a process cancels and reschedules."""

PAUSE = 0.05
"""Seconds that a process waits after an error of the store."""

WAIT = 0.5
"""Seconds that a claim of a consumer waits."""

PUTS, CANCELS, RESCHEDULES = 0.6, 0.1, 0.1
"""The shares of what a producer does; the rest are claims."""

CONSUMER_CLAIMS = 0.9
"""The share of claims of a consumer; for the rest it does what a producer does."""

PENDING_ID = "pending-{}"
"""The ids of the messages that were put before."""

T = TypeVar("T")


def work(
    url: str,
    queue_name: str,
    name: str,
    seed: int,
    folder: Path,
    pending: int,
    consumes: bool,
    ending: Connection,
) -> None:
    """Use the queue, and write everything into a journal, until killed or told to end.

    Args:
        url: of the store.
        queue_name: the queue.
        name: of this process.
        seed: of what it does.
        folder: where its journal is, and what it prints.
        pending: how many messages were put before.
        consumes: whether it mostly claims; else it mostly puts.
        ending: is readable when the process is to end; also when its parent has died.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the others
    output = os.open(folder / f"{name}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    journal = Journal(folder / f"{name}.journal")
    journal.did("start", name=name, machine=platform.node())
    with Queue(queue_name, url, holder=name) as queue:
        worker = ProvingWorker(queue, journal, name, random.Random(seed), pending, consumes)
        while not ending.poll(0):
            worker.step()
    journal.did("end", name=name)


class ProvingWorker:
    """Does one random thing after the other.

    Args:
        queue: the queue.
        journal: its own.
        name: its name, with which the ids of its messages begin.
        chance: says what it does.
        pending: how many messages were put before.
        consumes: whether it mostly claims.
    """

    def __init__(
        self,
        queue: Queue,
        journal: Journal,
        name: str,
        chance: random.Random,
        pending: int,
        consumes: bool,
    ) -> None:
        self._queue = queue
        self._journal = journal
        self._name = name
        self._chance = chance
        self._pending = pending
        self._consumes = consumes
        self._numbers = itertools.count()
        self._put_ids: list[str] = []

    def step(self) -> None:
        """Do one thing."""
        if self._consumes and self._chance.random() < CONSUMER_CLAIMS:
            self._claim(WAIT)
            return
        draw = self._chance.random()
        if draw < PUTS:
            self._put()
        elif draw < PUTS + CANCELS:
            self._cancel()
        elif draw < PUTS + CANCELS + RESCHEDULES:
            self._reschedule()
        else:
            self._claim(None)

    def _put(self) -> None:
        count = self._chance.choice((1, 1, 1, 5, 30))
        ids = [f"{self._name}-{number}" for number in itertools.islice(self._numbers, count)]
        delay = self._chance.choice((0, 1)) * round(self._chance.uniform(0, MAX_DELAY), 3)
        messages = [
            NewMessage(body={"id": id}, id=id, delay=delay, attempts=ATTEMPTS) for id in ids
        ]
        self._journal.tries("put", ids=ids, delay=delay)
        outcomes = self._ask("put", lambda: self._queue.put_many(messages), ids=ids)
        if outcomes is not None:
            dues = [outcome.due for outcome in outcomes]
            self._journal.did("put", ids=[outcome.id for outcome in outcomes], dues=dues)
            self._put_ids = (self._put_ids + ids)[-CHANGEABLE:]

    def _cancel(self) -> None:
        if (id := self._some_id()) is None:
            return
        self._journal.tries("cancel", id=id)
        outcome = self._ask("cancel", lambda: self._queue.cancel(id), id=id)
        if outcome is not None:
            self._journal.did("cancel", id=id, done=outcome.done)

    def _reschedule(self) -> None:
        if (id := self._some_id()) is None:
            return
        delay = round(self._chance.uniform(0, MAX_DELAY), 3)
        self._journal.tries("reschedule", id=id, delay=delay)
        outcome = self._ask("reschedule", lambda: self._queue.reschedule(id, delay=delay), id=id)
        if outcome is not None:
            self._journal.did("reschedule", id=id, done=outcome.done, due=outcome.due)

    def _some_id(self) -> str | None:
        """Return a message to change: one of its own, or now and then one that was put before."""
        if self._pending and self._chance.random() < 0.3:
            return PENDING_ID.format(self._chance.randrange(self._pending))
        return self._chance.choice(self._put_ids) if self._put_ids else None

    def _claim(self, wait: float | None) -> None:
        count = self._chance.choice((1, 3, 20, 100))
        deliveries = claim(self._queue, self._journal, count, wait, LEASE)
        returned, retried, acked = [], [], []
        for delivery in deliveries:
            draw = self._chance.random()
            if draw < 0.05:
                returned.append(delivery)
            elif draw < 0.1:
                retried.append(delivery)
            else:
                acked.append(delivery)
        settle(self._journal, "ack", acked, self._queue.ack)
        settle(self._journal, "release", returned, self._queue.release)
        settle(self._journal, "retry", retried, self._queue.retry)

    def _ask(self, verb: str, call: Callable[[], T], **facts: Any) -> T | None:
        """Call the store; `facts` are those of the event "tries" in the journal."""
        return call_store(self._journal, verb, call, [facts])


def call_store(
    journal: Journal, verb: str, call: Callable[[], T], tries: Sequence[dict[str, Any]]
) -> T | None:
    """Call the store. After an error, write down that the result is unknown, and return `None`.

    Args:
        journal: of the process.
        verb: of the events in the journal: "put", "claim".
        call: calls the store.
        tries: the facts of each event "tries" that the caller has written: each gets an event
            "unknown" after an error.

    Raises:
        AccessDenied: what is not allowed will not be allowed later.
    """
    try:
        return call()
    except AccessDenied:
        raise
    except StoreError as error:
        for facts in tries:
            journal.unknown(verb, **facts, error=f"{type(error).__name__}: {error}")
        time.sleep(PAUSE)
        return None


def claim(
    queue: Queue, journal: Journal, count: int, wait: float | None, lease: float
) -> list[Delivery]:
    """Claim messages, and write down which ones came; none after an error of the store."""
    journal.tries("claim")
    deliveries = call_store(
        journal, "claim", lambda: queue.claim(count, wait=wait, lease=lease), [{}]
    )
    if not deliveries:
        return []
    messages = []
    for delivery in deliveries:
        message = delivery.message
        facts: dict[str, Any] = {
            "id": message.id,
            "until": message.until,
            "due": message.due,
            "attempt": message.attempt,
        }
        if message.body != {"id": message.id}:
            facts["altered"] = True
        messages.append(facts)
    first = deliveries[0]
    journal.did("claim", now=first.claimed, token=first.token, messages=messages)
    return deliveries


def settle(
    journal: Journal,
    verb: str,
    deliveries: Sequence[Delivery],
    call: Callable[[Sequence[Delivery]], list[Outcome]],
) -> None:
    """Ack deliveries or give them back, and write down each answer.

    Args:
        journal: of the process.
        verb: what is done.
        deliveries: those to settle.
        call: the method of the queue for it.
    """
    if not deliveries:
        return
    tries = [{"id": delivery.id, "token": delivery.token} for delivery in deliveries]
    for facts in tries:
        journal.tries(verb, **facts)
    outcomes = call_store(journal, verb, lambda: call(deliveries), tries)
    if outcomes is not None:
        for facts, outcome in zip(tries, outcomes, strict=True):
            journal.did(verb, **facts, done=outcome.done)
