"""Tasks that are `async def`, on a loop of the caller's."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from bide.timing import ScheduledExecutor
from tests.unit.timing.conftest import RecordingClock


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(settle(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


async def settle() -> None:
    """Wait until the tasks that were cancelled have heard of it."""
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


def test_a_coroutine_runs_on_the_given_loop(
    clock: RecordingClock, loop: asyncio.AbstractEventLoop
) -> None:
    async def task(number: int) -> tuple[bool, int]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is loop, number

    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        future = executor.schedule(task, 5, args=(3,))
        clock.wait_for_waiters()
        clock.advance(5)
        assert future.result(60) == (True, 3)
        assert executor.submit(task, 4).result(60) == (True, 4)
        assert executor.submit(lambda: task(5)).result(60) == (True, 5)


def test_without_a_loop_a_coroutine_function_is_refused(clock: RecordingClock) -> None:
    async def task() -> None: ...

    class Callable:
        async def __call__(self) -> None: ...

    with ScheduledExecutor(1, clock=clock) as executor:
        for fn in (task, Callable()):
            with pytest.raises(TypeError, match="is async; make the executor with loop="):
                executor.schedule(fn, 1)
        hidden = executor.submit(lambda: task())
        assert isinstance(hidden.exception(10), TypeError)


def test_a_coroutine_occupies_no_thread(
    clock: RecordingClock, loop: asyncio.AbstractEventLoop
) -> None:
    started: asyncio.Queue[None] = asyncio.Queue()

    async def endless() -> None:
        started.put_nowait(None)
        await asyncio.Event().wait()

    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        futures = [executor.submit(endless) for _ in range(3)]
        for _ in futures:
            asyncio.run_coroutine_threadsafe(started.get(), loop).result(60)
        assert executor.submit(lambda: "free").result(60) == "free"
        assert all(future.running() for future in futures)
        assert all(future.cancel() for future in futures)


def test_a_coroutine_that_shuts_its_executor_down_does_not_wait_for_itself(
    clock: RecordingClock, loop: asyncio.AbstractEventLoop
) -> None:
    executor = ScheduledExecutor(1, loop=loop, clock=clock)

    async def task() -> None:
        executor.shutdown()

    assert executor.submit(task).result(60) is None
    executor.shutdown()


def test_cancelling_a_running_coroutine_cancels_its_task(
    clock: RecordingClock, loop: asyncio.AbstractEventLoop
) -> None:
    started, cleaned = threading.Event(), threading.Event()

    async def task() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        for schedule in (executor.schedule, executor.schedule_with_fixed_delay):
            future = schedule(task, 1)
            clock.wait_for_waiters()
            clock.advance(1)
            assert started.wait(60)
            assert [future.cancel(), future.cancel()] == [True, True]
            assert cleaned.wait(60)
            assert future.cancelled()
            started.clear()
            cleaned.clear()


def test_a_coroutine_that_cancels_itself_is_a_cancelled_future(
    clock: RecordingClock, loop: asyncio.AbstractEventLoop
) -> None:
    async def task() -> None:
        raise asyncio.CancelledError

    ended = threading.Event()
    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        future = executor.schedule(task, 0)
        future.add_done_callback(lambda _: ended.set())
        assert ended.wait(60)
        assert future.cancelled()


def test_a_periodic_coroutine_goes_on_until_it_raises(
    clock: RecordingClock, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[float] = []
    rounds = threading.Semaphore(0)

    async def task() -> None:
        await asyncio.sleep(0)
        ran.append(clock.monotonic() - 1_000)
        rounds.release()
        if len(ran) == 3:
            raise ValueError("enough")

    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        future = executor.schedule_at_fixed_rate(task, 1)
        for number in range(1, 3):
            assert rounds.acquire(timeout=60)
            clock.wait_for_waiters()  # the thread that started it has let go of it
            for _ in range(2):  # the loop has got round to queueing the next run
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
            assert future.runs == number
            clock.advance(1)
        with pytest.raises(ValueError, match="enough"):
            future.result(60)
    assert ran == [0, 1, 2]
    assert "enough" in caplog.text


def test_a_closed_loop_is_the_tasks_error(
    clock: RecordingClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def task() -> None: ...

    loop = asyncio.new_event_loop()
    loop.close()
    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        future = executor.schedule(task, 0)
        assert isinstance(future.exception(10), RuntimeError)
    assert "closed" in caplog.text


def test_a_task_lost_with_its_loop_can_still_be_cancelled(clock: RecordingClock) -> None:
    async def task() -> None: ...

    loop = asyncio.new_event_loop()  # never runs
    with ScheduledExecutor(1, loop=loop, clock=clock) as executor:
        future = executor.schedule(task, 0)
        clock.wait_for_waiters()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        future.cancel()
    assert future.done()


def test_a_task_that_ends_while_it_is_cancelled_fails_nothing(
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, over = threading.Event(), asyncio.Event()

    async def task() -> None:
        begun.set()
        await over.wait()

    with ScheduledExecutor(1, loop=loop) as executor:
        future = executor.submit(task)
        assert begun.wait(60)
        while future._on_loop is None:
            time.sleep(0.001)
        caller = threading.current_thread()

        def is_closed() -> bool:
            if threading.current_thread() is caller:  # in `cancel`: now the task ends
                loop.call_soon_threadsafe(over.set)
                while future._on_loop is not None:
                    time.sleep(0.001)
            return False

        with monkeypatch.context() as patch:
            patch.setattr(loop, "is_closed", is_closed)
            assert future.cancel()
    assert not caplog.records
