"""A call that is interrupted or cancelled ends alone; a claim gives its messages back at once."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities, Identities
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite import engine as sqlite
from bide.lane.inbox import AsyncRequest, LaneRequest
from bide.lane.lane import Lane
from bide.model.commands import Claim, Command, Count, History, RetryCommand
from bide.model.errors import StoreBusy
from bide.model.replies import Counts, Reply, expect
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_submitted, has_waiting_queues, inbox_of, is_closing
from tests.unit.lane.commands import PATIENCE, claim, claims, ids, put, sizes, spawn, waiting
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
    until(lambda: len(store._queues["q"].sets["ready"]) == 1)
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


@pytest.mark.parametrize("is_async", [False, True])
def test_interrupted_before_the_caller_has_what_is_made_of_the_reply(
    clock: FakeClock, is_async: bool
) -> None:
    lane = Lane(MemoryEngine, clock)
    lane.call(put("a"))

    def call() -> None:
        if is_async:
            asyncio.run(lane.acall(claim(), None, None, strike))
        else:
            lane.call(claim(), None, None, strike)

    with pytest.raises(KeyboardInterrupt):
        call()
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
    add = inbox_of(lane).add

    def interrupted(request: LaneRequest) -> None:
        add(request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(inbox_of(lane), "add", interrupted)
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


WAITS = [None, 0.0, 60.0]


@pytest.mark.parametrize("wait", WAITS)
def test_cancelled_before_it_was_executed_it_takes_no_message(
    lane: Lane, engine: FlakyEngine, clock: FakeClock, wait: float | None
) -> None:
    lane.call(put("a"))

    async def main() -> None:
        with engine.held():
            first = asyncio.create_task(lane.acall(put("b", queue="other")))
            await asyncio.to_thread(engine.wait_until_held)
            tasks = [asyncio.create_task(lane.acall(claim(), wait=wait)) for _ in range(5)]
            await asyncio.sleep(0)
            assert count_submitted(lane) == 5
            for task in tasks:
                task.cancel()
        await first
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ids(await lane.acall(claim())) == ["a"]

    asyncio.run(main())
    assert claims(engine) == 1
    assert not has_waiting_queues(lane)


def test_cancelled_before_it_asked_it_leaves_its_turn_to_the_next(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    async def main() -> Reply:
        first = asyncio.create_task(lane.acall(claim(), wait=60))
        await asyncio.to_thread(waiting, lane, 1)
        second = asyncio.create_task(lane.acall(claim(), wait=60))
        await asyncio.to_thread(waiting, lane, 2)
        with engine.held():
            other = asyncio.create_task(lane.acall(put("b", queue="other")))
            await asyncio.to_thread(engine.wait_until_held)
            engine.engine.execute([put("a")], clock.now())
            await asyncio.to_thread(lane.hint, "q", 0)
            leader = lane._waiting.due(lane.clock.monotonic())
            inbox_of(lane).requests.extend(leader)  # as if it was to ask with the next batch
            first.cancel()
            await asyncio.sleep(0)
        await other
        return await asyncio.wait_for(second, PATIENCE)

    assert ids(asyncio.run(main())) == ["a"]


def test_closing_ends_although_only_claims_without_callers_are_left(
    lane: Lane, engine: FlakyEngine
) -> None:
    async def main() -> None:
        with engine.held():
            other = asyncio.create_task(lane.acall(put("b", queue="other")))
            await asyncio.to_thread(engine.wait_until_held)
            task = asyncio.create_task(lane.acall(claim(), wait=60))
            await asyncio.sleep(0)
            task.cancel()
            closing = asyncio.create_task(asyncio.to_thread(lane.close))
            await asyncio.to_thread(until, lambda: is_closing(lane))
        await asyncio.wait_for(closing, PATIENCE)
        await other

    asyncio.run(main())


@pytest.mark.parametrize("wait", WAITS)
def test_cancelled_while_it_is_executed(
    lane: Lane, engine: FlakyEngine, back: Callable[[], None], wait: float | None
) -> None:
    async def main() -> None:
        with engine.held():
            task = asyncio.create_task(lane.acall(claim(), wait=wait))
            await asyncio.to_thread(engine.wait_until_held)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.to_thread(back)

    asyncio.run(main())


def test_cancelled_while_it_is_executed_and_the_lane_is_closed(
    lane: Lane, engine: FlakyEngine
) -> None:
    """As by a worker that stops just when its first claim is under way."""
    lane.call(put("a"))

    async def main() -> None:
        with engine.held():
            task = asyncio.create_task(lane.acall(claim(), wait=60))
            await asyncio.to_thread(engine.wait_until_held)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            closing = threading.Thread(target=lane.close)
            closing.start()
            await asyncio.to_thread(until, lambda: is_closing(lane))
        closing.join(PATIENCE)  # this loop has no time to look meanwhile

    asyncio.run(main())
    assert any(isinstance(one, RetryCommand) and one.release for one in engine.batches[-1])


@pytest.mark.parametrize("wait", WAITS)
def test_cancelled_between_its_execution_and_its_settling(
    lane: Lane, back: Callable[[], None], wait: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        real = lane._deliver

        def cancel_first(requests: list[AsyncRequest]) -> None:
            task.cancel()
            real(requests)

        monkeypatch.setattr(lane, "_deliver", cancel_first)
        task = asyncio.create_task(lane.acall(claim(), wait=wait))
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(back)

    asyncio.run(main())


@pytest.mark.parametrize("wait", WAITS)
def test_cancelled_in_the_very_moment_in_which_it_is_settled(
    lane: Lane, back: Callable[[], None], wait: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        real = lane._deliver

        def cancel_after(requests: list[AsyncRequest]) -> None:
            real(requests)
            assert requests[0].future.done()
            task.cancel()

        monkeypatch.setattr(lane, "_deliver", cancel_after)
        task = asyncio.create_task(lane.acall(claim(), wait=wait))
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(back)

    asyncio.run(main())


def test_an_error_for_somebody_who_was_cancelled_goes_unheard(
    lane: Lane, engine: FlakyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        real = lane._deliver

        def cancel_after(requests: list[AsyncRequest]) -> None:
            real(requests)
            task.cancel()

        monkeypatch.setattr(lane, "_deliver", cancel_after)
        engine.fail(StoreBusy("locked"))
        task = asyncio.create_task(lane.acall(claim()))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_timeout_around_a_claim_leaves_nothing_held(
    lane: Lane, engine: FlakyEngine, back: Callable[[], None]
) -> None:
    async def until_held() -> None:
        async with asyncio.timeout(None) as limit:
            begun = asyncio.create_task(asyncio.to_thread(engine.wait_until_held))
            begun.add_done_callback(lambda _: limit.reschedule(0))
            await lane.acall(claim(), wait=60)

    async def main() -> None:
        with engine.held(), pytest.raises(TimeoutError):
            await until_held()
        await asyncio.to_thread(back)

    asyncio.run(main())


def test_a_parked_claim_that_is_cancelled_asks_no_more(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    async def main() -> None:
        task = asyncio.create_task(lane.acall(claim(), wait=60))
        await asyncio.to_thread(waiting, lane)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    waiting(lane, 0)
    before = claims(engine)
    lane.call(put("a"))
    clock.advance(5)
    lane.call(put("b"))
    assert claims(engine) == before
    assert sizes(engine, clock.now()) == (0, 2, 0)


def test_of_two_who_wait_the_second_gets_what_the_cancelled_first_left(
    lane: Lane, engine: FlakyEngine
) -> None:
    async def main() -> Reply:
        first = asyncio.create_task(lane.acall(claim(), wait=60))
        await asyncio.to_thread(waiting, lane, 1)
        second = asyncio.create_task(lane.acall(claim(), wait=60))
        await asyncio.to_thread(waiting, lane, 2)
        first.cancel()
        await asyncio.to_thread(lane.call, put("a"))
        return await asyncio.wait_for(second, PATIENCE)

    assert ids(asyncio.run(main())) == ["a"]


@pytest.mark.parametrize("wait", WAITS)
def test_whose_event_loop_was_closed_meanwhile(
    lane: Lane, engine: FlakyEngine, back: Callable[[], None], wait: float | None
) -> None:
    loop = asyncio.new_event_loop()
    with engine.held():
        task = loop.create_task(lane.acall(claim(), wait=wait))
        loop.run_until_complete(asyncio.sleep(0))
        engine.wait_until_held()
        loop.close()
    back()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_whose_event_loop_is_closed_just_before_it_would_be_woken(
    lane: Lane, engine: FlakyEngine, back: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AsyncRequest, "gone", False)
    test_whose_event_loop_was_closed_meanwhile(lane, engine, back, None)


def test_whose_event_loop_was_closed_while_it_waited(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(lane.acall(claim(), wait=60))
    loop.run_until_complete(asyncio.sleep(0))
    waiting(lane)
    loop.close()
    lane.call(put("a"))
    until(lambda: sizes(engine, clock.now()) == (0, 1, 0) and not lane._waiting)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_put_whose_caller_was_cancelled_is_carried_out_all_the_same(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    async def main() -> None:
        with engine.held():
            task = asyncio.create_task(lane.acall(put("a")))
            await asyncio.to_thread(engine.wait_until_held)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    until(lambda: sizes(engine, clock.now()) == (0, 1, 0))
