"""Signal handlers, finalizers and handlers of `logging` use the store that their thread uses.

Such a call is executed or refused (`WrongContext`), whatever else the lane does; it never waits for
its own thread. Nothing here is lost: what was put with an answer is in the store.
"""

import gc
import itertools
import logging
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bide
from bide.threads import deaths
from tests.effort import effort
from tests.unit.lane.commands import PATIENCE, spawn
from tests.waiting import until


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/b.db"
    )


class Puts:
    """Puts into a queue from where nobody may wait, and counts the answers."""

    def __init__(self, queue: bide.Queue) -> None:
        self._queue = queue
        self._numbers = itertools.count()
        self.done: set[str] = set()
        self.refused = 0

    def put(self) -> None:
        id = f"n{next(self._numbers)}"
        try:
            self._queue.put(id, id=id)
        except bide.WrongContext:
            self.refused += 1
        else:
            self.done.add(id)


@pytest.fixture
def work(url: str) -> Iterator[Callable[[], None]]:
    """Provide what three threads do at a time: they put, claim with a wait, and ack."""
    queue = bide.Queue("work", url)

    def turn() -> None:
        queue.put("x")
        for delivery in queue.claim(5, wait=0.001):
            delivery.ack()

    yield turn
    queue.close()


def in_threads(work: Callable[[], None], turns: int) -> None:
    def run() -> None:
        for _ in range(turns):
            work()

    threads = [spawn(run) for _ in range(3)]
    run()
    for thread in threads:
        thread.result(PATIENCE)


def check(url: str, puts: Puts) -> None:
    with bide.Queue("notes", url) as notes:
        assert {message.id for message in notes.scan()} == puts.done
        assert notes.audit()
    assert puts.done


def test_finalizers_that_the_collector_calls(url: str, work: Callable[[], None]) -> None:
    with bide.Queue("notes", url) as notes:
        puts = Puts(notes)
        made, collected = list[None](), list[None]()

        class Garbage:
            """Can only be collected as a cycle."""

            def __init__(self) -> None:
                self.me = self
                made.append(None)

            def __del__(self) -> None:
                puts.put()
                collected.append(None)

        def all_is_collected() -> bool:
            gc.collect()  # it does nothing while another thread collects
            return len(collected) == len(made)

        chance = random.Random(1)
        lists: list[object] = []

        def turn() -> None:
            Garbage()
            # The collector counts what is made: so it comes at any place of a turn.
            lists.extend([] for _ in range(chance.randrange(20)))
            work()

        before, died = gc.get_threshold(), deaths.total()
        gc.set_threshold(20, 2, 2)
        try:
            in_threads(turn, effort(100, 2_000))
        finally:
            gc.set_threshold(*before)
        until(all_is_collected)
        check(url, puts)
        assert deaths.total() == died


def test_a_signal_handler_that_puts(url: str, work: Callable[[], None]) -> None:
    with bide.Queue("notes", url) as notes:
        puts = Puts(notes)
        rings = True

        def ring(*_: object) -> None:
            puts.put()
            if rings:  # again after the put, which may take longer
                signal.setitimer(signal.ITIMER_REAL, 0.0003)

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        try:
            in_threads(work, effort(200, 2_000))
        finally:
            rings = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        check(url, puts)


def test_a_logging_handler_that_puts(url: str, root_log: None) -> None:
    """Claims log what died, under the lock of the handler: the lane's thread must not wait for it.

    Each claim lets its messages die, and the next claims log that.
    """
    with bide.Queue("notes", url) as notes, bide.Queue("work", url) as work:
        puts = Puts(notes)

        class Shipping(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                puts.put()

        def turn() -> None:
            work.put("x", attempts=1)
            work.claim(5, wait=0.001, lease=0.001)

        log = logging.getLogger("bide.lane")
        handler = Shipping()
        log.addHandler(handler)
        try:
            in_threads(turn, effort(100, 2_000))
        finally:
            log.removeHandler(handler)
        check(url, puts)
        assert puts.refused == 0
