"""A process that puts, claims, acks, cancels, closes groups and gives back until it is killed."""

import itertools
import random
import time
from pathlib import Path

import bide
from bide.testing.history import Journal

__all__ = ["drain", "work"]


def work(url: str, name: str, seed: int, folder: Path, *, tolerant: bool = False) -> None:
    """Work for ever, telling everything to a journal of its own.

    One who is `tolerant` goes on after errors of the store.
    """
    chance = random.Random(seed)
    journal = Journal(folder / f"{name}.journal")
    put: list[str] = []
    numbers = itertools.count()
    with bide.Queue("orders", url, holder=name) as orders:
        journal.did("start")
        while True:
            draw = chance.random()
            try:
                if draw < 0.4:
                    count = chance.choice((1, 1, 1, 5, 30))
                    ids = [f"{name}-{number}" for number in itertools.islice(numbers, count)]
                    _put(orders, journal, chance, ids)
                    put += ids
                elif draw < 0.5 and put:
                    _cancel(orders, journal, chance.choice(put))
                elif draw < 0.53:
                    _close(orders, journal)
                else:
                    _claim(orders, journal, chance)
            except bide.StoreError as error:
                if not tolerant:
                    raise
                journal.did("fail", error=type(error).__name__)
                time.sleep(0.02)


def _put(orders: bide.Queue, journal: Journal, chance: random.Random, ids: list[str]) -> None:
    group = chance.choice((None, None, _group_of_now()))
    journal.tries("put", ids=ids, group=group)
    delay = chance.choice((0, 0, chance.random() / 2))
    messages = [
        bide.NewMessage(body=id, id=id, delay=delay, attempts=10_000, group=group) for id in ids
    ]
    if len(ids) > 1:
        outcomes = orders.put_many(messages)
    else:
        outcomes = [orders.put(ids[0], id=ids[0], attempts=10_000, group=group)]
    stored = [outcome.id for outcome in outcomes if outcome.state != "closed"]
    journal.did("put", ids=stored, group=group)


def _group_of_now() -> str:
    """Return the group that all processes use at the time: another one each fifth of a second."""
    return f"g{time.time_ns() // 200_000_000}"


def _close(orders: bide.Queue, journal: Journal) -> None:
    group = _group_of_now()
    journal.tries("close", group=group)
    orders.close_group(group, keep="1h")
    journal.did("close", group=group)


def _cancel(orders: bide.Queue, journal: Journal, id: str) -> None:
    journal.tries("cancel", id=id)
    outcome = orders.cancel(id)
    journal.did("cancel", id=id, done=outcome.done)


def _claim(orders: bide.Queue, journal: Journal, chance: random.Random) -> None:
    lease = chance.choice((0.2, 0.5, 2))
    wait = chance.choice((None, 0.02))
    deliveries = _journaled(orders, journal, chance.choice((1, 3, 20)), lease, wait)
    for delivery in deliveries:
        draw = chance.random()
        if draw < 0.05:
            continue  # forgotten: its lease lapses
        if draw < 0.15:
            journal.tries("release", id=delivery.id, token=delivery.token)
            (outcome,) = orders.release([delivery])
            journal.did("release", id=delivery.id, token=delivery.token, done=outcome.done)
            continue
        if draw < 0.2:
            journal.tries("extend", id=delivery.id, token=delivery.token, lease=300)
            (outcome,) = orders.extend([delivery], 0.3)
            if outcome:
                facts = {"id": delivery.id, "token": delivery.token, "until": outcome.until}
                journal.did("extend", **facts)
        _ack(orders, journal, delivery)


def _journaled(
    orders: bide.Queue, journal: Journal, count: int, lease: float, wait: float | None
) -> list[bide.Delivery]:
    journal.tries("claim")
    deliveries = orders.claim(count, lease=lease, wait=wait)
    if deliveries:
        messages = [
            {
                "id": delivery.id,
                "until": delivery.message.until,
                "due": delivery.message.due,
                "attempt": delivery.attempt,
            }
            for delivery in deliveries
        ]
        first = deliveries[0]
        journal.did("claim", now=first.claimed, token=first.token, messages=messages)
    return deliveries


def _ack(orders: bide.Queue, journal: Journal, delivery: bide.Delivery) -> None:
    journal.tries("ack", id=delivery.id, token=delivery.token)
    (outcome,) = orders.ack([delivery])
    journal.did("ack", id=delivery.id, token=delivery.token, done=outcome.done)


def drain(url: str, folder: Path, patience: float = 30.0) -> None:
    """Take and ack everything that is left, as leases of the dead lapse."""
    journal = Journal(folder / "drain.journal")
    deadline = time.monotonic() + patience
    with bide.Queue("orders", url, holder="drain") as orders:
        while orders.counts().sizes.total:
            assert time.monotonic() < deadline, orders.counts()
            for delivery in _journaled(orders, journal, 500, 30, 0.5):
                _ack(orders, journal, delivery)
