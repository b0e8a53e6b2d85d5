"""Processes for a move under fire: a mover, a producer, and workers on both stores."""

import random
import time
from pathlib import Path

import bide
from bide.moving import Mover, steps
from bide.testing.history import Journal

__all__ = ["keep_moving", "produce", "serve"]


def keep_moving(old: str, new: str, lease: float, folder: Path) -> None:
    """Move for ever."""
    steps.LEASE = lease
    with bide.Queue("orders", old) as source, bide.Queue("orders", new) as target:
        mover = Mover(source, target, batch=50)
        while True:
            mover.run()


def produce(url: str, name: str, seed: int, folder: Path) -> None:
    """Put, and cancel now and then, for ever."""
    chance = random.Random(seed)
    journal = Journal(folder / f"{name}.journal")
    count = 0
    with bide.Queue("orders", url, holder=name) as orders:
        while True:
            ids = [f"{name}-{count + number}" for number in range(20)]
            count += 20
            journal.tries("put", ids=ids)
            delays = (0, chance.random(), 30)
            orders.put_many(
                [bide.NewMessage(id, id=id, delay=chance.choice(delays), attempts=99) for id in ids]
            )
            journal.did("put", ids=ids)
            if chance.random() < 0.5:
                id = chance.choice(ids)
                journal.tries("cancel", id=id)
                journal.did("cancel", id=id, done=orders.cancel(id).done)
            time.sleep(0.02)


def serve(url: str, name: str, folder: Path) -> None:
    """Claim and ack for ever."""
    journal = Journal(folder / f"{name}.journal")
    with bide.Queue("orders", url, holder=name) as orders:
        while True:
            for delivery in orders.claim(10, wait=1, lease=60):
                journal.did("handled", id=delivery.id)
                (outcome,) = orders.ack([delivery])
                journal.did("ack", id=delivery.id, done=outcome.done)
