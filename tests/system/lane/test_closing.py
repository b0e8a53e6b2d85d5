"""Close refuses, drains and closes; a program may end without closing anything."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from bide.engines.memory import MemoryEngine
from bide.lane.executor import Executor
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Count
from bide.model.errors import Closed
from bide.model.replies import Outcomes, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import is_closing
from tests.unit.lane.commands import PATIENCE, claim, ids, put, spawn, waiting
from tests.waiting import until


def test_a_closed_lane_refuses_everything(lane: Lane, engine: FlakyEngine) -> None:
    lane.call(put("a"))
    lane.close()
    for command in (put("b"), claim(), Count("q")):
        with pytest.raises(Closed, match="open a new one"):
            lane.call(command)
        with pytest.raises(Closed, match="open a new one"):
            asyncio.run(lane.acall(command))
    assert engine.closed == 1
    assert len(engine.batches) == 1


def test_a_call_that_finds_the_store_free_just_after_it_was_closed_is_refused(
    lane: Lane, engine: FlakyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.call(put("a"))
    real = lane._lock

    class ClosedFirst:
        """The lock of a lane that another thread closes before this one gets it."""

        def _is_owned(self) -> bool:
            return False

        def acquire(self, *, blocking: bool) -> bool:
            lane._lock = real
            spawn(lane.close).result(PATIENCE)
            return real.acquire(blocking=blocking)

    monkeypatch.setattr(lane, "_lock", ClosedFirst())
    with pytest.raises(Closed, match="open a new one"):
        lane.call(put("b"))
    assert engine.closed == 1
    assert len(engine.batches) == 1


def test_what_was_handed_in_is_carried_out_first(lane: Lane, engine: FlakyEngine) -> None:
    async def main() -> tuple[Reply, Reply]:
        with engine.held():
            alone = spawn(lane.call, put("a"))
            await asyncio.to_thread(engine.wait_until_held)
            task = asyncio.create_task(lane.acall(put("b")))
            await asyncio.sleep(0)
            closing = spawn(lane.close)
            await asyncio.to_thread(until, lambda: is_closing(lane))
            assert engine.closed == 0
        closing.result(PATIENCE)
        return alone.result(PATIENCE), await task

    assert all(isinstance(reply, Outcomes) for reply in asyncio.run(main()))
    assert engine.closed == 1


def test_claims_that_wait_hear_that_it_was_closed(lane: Lane) -> None:
    async def main() -> None:
        thread = spawn(lane.call, claim(), wait=60)
        task = asyncio.create_task(lane.acall(claim(), wait=60))
        await asyncio.to_thread(waiting, lane, 2)
        await asyncio.to_thread(lane.close)
        with pytest.raises(Closed, match="while this claim was waiting"):
            await task
        assert isinstance(thread.exception(PATIENCE), Closed)

    asyncio.run(main())


@pytest.mark.parametrize("filled", [False, True])
def test_a_claim_that_asks_while_it_is_closed_is_settled(
    lane: Lane, engine: FlakyEngine, filled: bool
) -> None:
    if filled:
        lane.call(put("a"))
    with engine.held():
        future = spawn(asyncio.run, lane.acall(claim(), wait=60))
        engine.wait_until_held()
        closing = spawn(lane.close)
        until(lambda: is_closing(lane))
    closing.result(PATIENCE)
    if filled:
        assert ids(future.result(PATIENCE)) == ["a"]
    else:
        assert isinstance(future.exception(PATIENCE), Closed)


def test_closing_twice_does_nothing(lane: Lane, engine: FlakyEngine) -> None:
    lane.call(put("a"))
    lane.close()
    lane.close()
    assert engine.closed == 1


def test_closing_what_was_never_used_opens_nothing(clock: FakeClock) -> None:
    opened: list[MemoryEngine] = []
    lane = Lane(lambda: opened.append(MemoryEngine()) or opened[0], clock)  # type: ignore[func-returns-value]
    lane.close()
    assert opened == []


def test_many_threads_may_close_at_once(lane: Lane, engine: FlakyEngine) -> None:
    waiter = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    start = threading.Barrier(8)

    def close() -> None:
        start.wait()
        lane.close()

    closers: list[Future[None]] = [spawn(close) for _ in range(8)]
    for closer in closers:
        closer.result(PATIENCE)
    assert isinstance(waiter.exception(PATIENCE), Closed)
    assert engine.closed == 1


def test_a_caller_who_comes_late_does_not_open_the_store_again(clock: FakeClock) -> None:
    opened = []

    def open_engine() -> MemoryEngine:
        opened.append(1)
        return MemoryEngine()

    lane = Lane(open_engine, clock)
    lane.call(put("a"))
    Executor.close(lane)  # as if the lane was closed right after the caller had looked
    with pytest.raises(Closed):
        lane.call(put("b"))
    with pytest.raises(Closed):
        asyncio.run(lane.acall(put("b")))
    assert opened == [1]
    lane.close()


def test_release_settles_the_claims_of_one_owner_only(lane: Lane) -> None:
    class Owner:
        pass

    mine, yours = Owner(), Owner()
    leaving = spawn(lane.call, claim(), mine, 60)
    waiting(lane, 1)
    staying = spawn(lane.call, claim(), yours, 60)
    waiting(lane, 2)
    lane.release(mine)
    assert isinstance(leaving.exception(PATIENCE), Closed)
    lane.call(put("a"))
    assert ids(staying.result(PATIENCE)) == ["a"]


def test_release_reaches_a_claim_that_is_asking_just_now(lane: Lane, engine: FlakyEngine) -> None:
    class Owner:
        pass

    owner = Owner()
    with engine.held():
        future = spawn(asyncio.run, lane.acall(claim(), owner, 60))
        engine.wait_until_held()
        lane.release(owner)
    assert isinstance(future.exception(PATIENCE), Closed)


def test_a_shared_lane_is_closed_by_the_last_who_uses_it() -> None:
    first, second = open_lane("memory://shared"), open_lane("memory://shared")
    other = open_lane("memory://other")
    assert first is second
    assert other is not first
    close_lane(first)
    first.call(put("a"))
    close_lane(second)
    with pytest.raises(Closed):
        first.call(put("b"))
    third = open_lane("memory://shared")
    assert third is not first
    close_lane(third)
    close_lane(other)


def test_no_thread_is_left_behind(engine: FlakyEngine, clock: FakeClock) -> None:
    before = set(threading.enumerate())
    lane = Lane(lambda: engine, clock)
    waiter = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    lane.close()
    assert waiter.exception(PATIENCE)
    until(lambda: set(threading.enumerate()) <= before)


USES = {
    "put": "queue.put(1)",
    "through the lane": "queue.put(1); queue.claim()",
    "looked": "queue.put(1); queue.counts()",
    "waited": "queue.claim(wait=0.01)",
    "a claim still waits": (
        "import threading\n"
        "thread = threading.Thread(target=lambda: queue.claim(wait=600), daemon=True)\n"
        "thread.start()\n"
        "while not queue._lane._waiting.queues: pass"
    ),
    "an error": "queue.put(1); queue.claim(); raise SystemExit(7)",
}


@pytest.mark.process
@pytest.mark.parametrize("url", ["memory://", "sqlite:///bide.db"])
@pytest.mark.parametrize("use", USES)
def test_a_program_that_closes_nothing_ends_at_once_and_quietly(
    tmp_path: Path, url: str, use: str
) -> None:
    program = f"import bide\nqueue = bide.Queue('orders', {url!r})\n{USES[use]}"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("", "")
    assert ended.returncode == (7 if use == "an error" else 0)


@pytest.mark.process
@pytest.mark.parametrize("url", ["memory://", "sqlite:///bide.db"])
def test_a_loop_that_ends_before_its_queue_is_closed_ends_quietly(tmp_path: Path, url: str) -> None:
    program = f"""
import asyncio, bide
async def main():
    queue = bide.AsyncQueue("orders", {url!r})
    task = asyncio.create_task(queue.claim(wait=600))
    await queue.put(1, delay=60)
    await queue.counts()
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
