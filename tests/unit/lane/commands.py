"""What the tests of the lane speak with: short commands, threads that report, bounded waiting."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from bide.lane.lane import Lane
from bide.model.commands import Claim, Configure, Count, Put
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Reply
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_submitted, count_waiting
from tests.waiting import until

R = TypeVar("R")
PATIENCE = 60.0


def put(*ids: str, delay: int = 0, queue: str = "q") -> Put:
    return Put(queue, [Item(id, b"1", delay=delay) for id in ids])


def claim(count: int = 1, queue: str = "q", lease: int = 30_000) -> Claim:
    return Claim(queue, count, lease, "w")


def pause(paused: bool) -> Configure:
    return Configure("q", paused=paused)


def ids(reply: Reply) -> list[str]:
    assert isinstance(reply, Claimed)
    return [message.id for message in reply.messages]


def spawn(function: Callable[..., R], *args: Any, **options: Any) -> "Future[R]":
    """Call a function in a thread that stops no test run from ending."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **options))
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def gathered(lane: Lane, count: int) -> None:
    """Block until so many commands wait in the inbox."""
    until(lambda: count_submitted(lane) == count)


def sizes(engine: FlakyEngine, now: int) -> tuple[int, int, int]:
    """Return how many messages are delayed, ready and leased, past the lane."""
    (counts,) = engine.engine.execute([Count("q")], now)
    assert isinstance(counts, Counts)
    return counts.sizes.delayed, counts.sizes.ready, counts.sizes.leased


def waiting(lane: Lane, count: int = 1) -> None:
    """Block until so many claims are parked and the lane itself is at rest."""

    until(lambda: count_waiting(lane) == count and lane.is_idle)


def claims(engine: FlakyEngine) -> int:
    """Return how often the store was asked for messages."""
    return sum(isinstance(command, Claim) for batch in engine.batches for command in batch)
