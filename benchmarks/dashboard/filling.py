"""A store with millions of messages pending, and something on each page of the dashboard."""

import random
from collections.abc import Iterator

import bide
from tests.system.dashboard.scene import set_scene

__all__ = ["fill"]

BATCH = 1_000

MONTH = 30 * 86_400.0

OVERDUE = 50
"""One of so many messages is due already, and waits for a worker."""

DEAD = 20_000


def fill(url: str, pending: int) -> None:
    """Fill an empty store.

    Args:
        url: of the store.
        pending: how many messages are to wait.
    """
    set_scene(url)
    chance = random.Random(5)
    with bide.Queue("parcels", url) as parcels, bide.Queue("backlog", url) as backlog:
        for part in _parts(pending - pending // OVERDUE):
            parcels.put_many(_parcel(n, chance.uniform(60, MONTH)) for n in part)
        for part in _parts(pending // OVERDUE):
            backlog.put_many(_parcel(n, 0.0) for n in part)
        backlog.release(backlog.claim(1))  # what is due becomes ready
    with bide.Queue("letters", url, holder="web3:17") as letters:
        for part in _parts(DEAD):
            letters.put_many(_parcel(n, 0.0) for n in part)
            letters.bury(letters.claim(BATCH), f"ConnectionError: host {part.start % 7} is away")
    with bide.Queue("remembered", url, history="7d", keep="7d") as remembered:
        for part in _parts(DEAD):
            remembered.put_many(_parcel(n, 0.0) for n in part)
            remembered.ack(remembered.claim(BATCH))


def _parts(count: int) -> Iterator[range]:
    for start in range(0, count, BATCH):
        yield range(start, min(start + BATCH, count))


def _parcel(n: int, delay: float) -> bide.NewMessage:
    return bide.NewMessage(
        {"parcel": n, "customer": n % 99_991},
        id=f"parcel-{n}",
        delay=delay,
        group=f"customer:{n % 99_991}",
        priority=n % 3,
    )
