"""An interrupt ends one call and nothing else; a claim gives its messages back at once."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite import engine as sqlite
from bide.lane.inbox import LaneRequest
from bide.lane.lane import Lane
from bide.model.command_identity import Identities
from bide.model.commands import Claim, Command, Count, History
from bide.model.replies import Counts, Reply, expect
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from tests.lane.commands import PATIENCE, claim, ids, put, sizes, spawn, waiting
from tests.waiting import until


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
    waiting(lane, 0)
    lane.call(put("a"))
    assert sizes(engine, clock.now()) == (0, 1, 0)


def test_interrupted_right_after_the_commit(clock: FakeClock, press: Callable[[], None]) -> None:
    class Interrupted(MemoryEngine):
        """Is interrupted where signals strike: on the way back from the disk."""

        capabilities = Capabilities(remembers=True)

        def execute(
            self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
        ) -> list[Reply]:
            replies = super().execute(commands, now)
            if any(isinstance(command, Claim) for command in commands):
                press()
            return replies

    store = Interrupted()
    lane = Lane(lambda: store, clock)
    lane.call(put("a"))
    with pytest.raises(KeyboardInterrupt):
        lane.call(claim())
    until(lambda: len(store._states["q"].sets["ready"]) == 1)
    lane.close()


def test_interrupted_between_the_commit_and_the_reply(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite executes a claim of the main thread in that thread, and recovers it."""
    store = SqliteEngine(tmp_path / "bide.db")
    lane = Lane(lambda: store, clock)
    lane.call(put("a"))
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "replies_of", strike)
        with pytest.raises(KeyboardInterrupt):
            lane.call(claim())
    until(lambda: ready(lane) == 1)
    claimed = lane.call(claim())
    assert ids(claimed) == ["a"]
    assert claimed.messages[0].attempt == 1  # type: ignore[union-attr]
    lane.close()


def test_interrupted_with_the_reply_at_hand(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteEngine(tmp_path / "bide.db")
    lane = Lane(lambda: store, clock)
    lane.call(put("a"))
    lane.listen(lambda queue, wake: None)
    with monkeypatch.context() as patched:
        patched.setattr(lane, "_hint_all", strike)
        with pytest.raises(KeyboardInterrupt):
            lane.call(claim())
    until(lambda: ready(lane) == 1)
    lane.close()


def ready(lane: Lane) -> int:
    return expect(Counts, lane.call(Count("q"))).sizes.ready


def strike(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", [claim(), History("q", "later", watch=True)])
def test_interrupted_right_after_it_was_submitted(
    lane: Lane,
    engine: FlakyEngine,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    lane.call(put("later", delay=60_000))
    add = lane._inbox.add

    def interrupted(request: LaneRequest) -> None:
        add(request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lane._inbox, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lane.call(command, wait=60)
    lane.call(put("a"))
    waiting(lane, 0)
    assert sizes(engine, clock.now()) == (1, 1, 0)
    assert ids(lane.call(claim(), wait=60)) == ["a"]


def test_interrupted_while_it_enters_the_lane(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        """A lock after whose taking a signal strikes."""

        def __init__(self, lock: Any) -> None:
            self.release, self._is_owned, self._acquire = lock.release, lock._is_owned, lock.acquire

        def acquire(self, *, blocking: bool) -> bool:
            assert self._acquire(blocking=blocking)
            raise KeyboardInterrupt

    lane.call(put("a"))
    with monkeypatch.context() as patched:
        patched.setattr(lane, "_lock", Interrupted(lane._lock))
        with pytest.raises(KeyboardInterrupt):
            lane.call(put("b"))
    lane.call(put("c"))
    spawn(lane.call, put("d")).result(PATIENCE)
