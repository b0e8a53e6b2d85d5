"""A claim that was interrupted gives its messages back at once."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from bide.engines.memory import MemoryEngine
from bide.lane import Lane
from bide.model.commands import Claim, Command
from bide.model.replies import Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from tests.lane.commands import claim, eventually, put, sizes, spawn, waiting


@pytest.fixture
def press() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, once.

    A signal in the instant in which that thread goes to sleep on a lock is lost to CPython, so it
    is sent until the handler has run.
    """
    struck = False

    def handler(*_: object) -> None:
        nonlocal struck
        if not struck:
            struck = True
            raise KeyboardInterrupt

    def press() -> None:
        while not struck:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.01)

    before = signal.signal(signal.SIGINT, handler)
    yield press
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("wait", [None, 0.0, 60.0])
def test_interrupted_while_it_is_executed(
    lane: Lane,
    engine: FlakyEngine,
    back: Callable[[], None],
    wait: float | None,
    press: Callable[[], None],
) -> None:
    def interrupt() -> None:
        engine.wait_until_held()
        press()

    with engine.held():
        spawn(interrupt)
        with pytest.raises(KeyboardInterrupt):
            lane.call(claim(), wait=wait)
    back()


def test_interrupted_while_it_waits(
    lane: Lane, engine: FlakyEngine, clock: FakeClock, press: Callable[[], None]
) -> None:
    def interrupt() -> None:
        waiting(lane)
        press()

    spawn(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lane.call(claim(), wait=60)
    assert len(lane._waiting) == 0
    lane.call(put("a"))
    assert sizes(engine, clock.now()) == (0, 1, 0)


def test_interrupted_right_after_the_commit(clock: FakeClock, press: Callable[[], None]) -> None:
    class Interrupted(MemoryEngine):
        """Is interrupted where signals strike: on the way back from the disk."""

        def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
            replies = super().execute(commands, now)
            if any(isinstance(command, Claim) for command in commands):
                press()
            return replies

    store = Interrupted()
    lane = Lane(lambda: store, clock)
    lane.call(put("a"))
    with pytest.raises(KeyboardInterrupt):
        lane.call(claim())
    eventually(lambda: len(store._states["q"].sets["ready"]) == 1)
    lane.close()
