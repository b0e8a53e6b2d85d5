"""`AsyncDelayQueue`: the same answers as `DelayQueue`, and what cancellation does."""

import asyncio
import inspect
import queue as standard
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from bide.testing.clock import FakeClock
from bide.timing import AsyncDelayQueue, DelayQueue, ShutDown


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 20))

    return run


async def turn() -> None:
    """Let everybody on the loop do what they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_it_has_the_same_face_as_the_blocking_queue() -> None:
    names = {name for name in dir(DelayQueue) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncDelayQueue) if not name.startswith("_")}
    for name in names:
        blocking, awaited = getattr(DelayQueue, name), getattr(AsyncDelayQueue, name)
        assert str(inspect.signature(blocking)) == str(inspect.signature(awaited))


@on_a_loop
async def test_items_come_out_when_they_are_due_in_order() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    for name, delay, priority in [("c", 2, 0), ("b", 1, 0), ("a", 1, 5), ("d", 3e8, 0)]:
        queue.put(name, delay, priority=priority)
    taken: list[str] = []

    async def consume() -> None:
        while True:
            taken.append(await queue.take())

    task = asyncio.create_task(consume())
    await turn()
    assert taken == []
    for seconds, expected in [(0.999, ""), (0.001, "ab"), (1, "abc"), (3e8 - 2, "abcd")]:
        clock.advance(seconds)
        await turn()
        assert taken == list(expected)
    task.cancel()


@on_a_loop
async def test_a_new_head_wakes_the_waiter() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    queue.put("far", 100)
    task = asyncio.create_task(queue.take())
    await turn()
    queue.put("near", 1)
    clock.advance(1)
    assert await task == "near"
    assert [handle.item for handle in queue] == ["far"]


@on_a_loop
async def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[int] = AsyncDelayQueue(clock=clock)
    served: list[tuple[int, int]] = []

    async def waiter(number: int) -> None:
        served.append((number, await queue.take()))

    tasks = [asyncio.create_task(waiter(number)) for number in range(20)]
    await turn()
    for number in range(20):
        queue.put(number, 1)
    clock.advance(1)
    await asyncio.gather(*tasks)
    assert served == [(number, number) for number in range(20)]


@on_a_loop
async def test_a_newcomer_does_not_jump_the_line() -> None:
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=FakeClock())
    first = asyncio.create_task(queue.take())
    await turn()
    queue.put("one")
    second = asyncio.create_task(queue.take())
    queue.put("two")
    assert [await first, await second] == ["one", "two"]


@on_a_loop
async def test_the_loop_holds_one_timer_however_many_wait() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[int] = AsyncDelayQueue(clock=clock)
    for number in range(50):
        queue.put(number, 100 - number)
    tasks = [asyncio.create_task(queue.take()) for _ in range(50)]
    await turn()
    assert sum(timer._callback is not None for _, _, timer in clock._timers) == 1
    clock.advance(100)
    assert await asyncio.gather(*tasks) == list(range(50))[::-1]
    assert all(timer._callback is None for _, _, timer in clock._timers)


@on_a_loop
async def test_a_cancelled_take_has_taken_nothing() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    queue.put("x", 1)
    first = asyncio.create_task(queue.take())
    second = asyncio.create_task(queue.take())
    await turn()
    clock.advance(1)
    await asyncio.sleep(0)  # the head rings, and wakes the first ...
    first.cancel()  # ... which is cancelled before it can run
    assert await second == "x"
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("turns", range(6))
def test_cancelling_at_any_step_loses_nothing(turns: int) -> None:
    async def main() -> None:
        clock = FakeClock()
        queue: AsyncDelayQueue[int] = AsyncDelayQueue(clock=clock)
        tasks = [asyncio.create_task(queue.take()) for _ in range(6)]
        await turn()
        for number in range(6):
            queue.put(number, 1)
        clock.advance(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[:5]:
            task.cancel()
        done = await asyncio.gather(*tasks[:5], return_exceptions=True)
        taken = [item for item in done if isinstance(item, int)]
        taken.append(await tasks[5])
        assert sorted(taken + queue.drain()) == list(range(6))
        assert not queue._waiting

    asyncio.run(asyncio.wait_for(main(), 20))


@on_a_loop
async def test_take_gives_up_in_time() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    queue.put("late", 10)
    with pytest.raises(standard.Empty):
        await queue.take(0)
    patient = asyncio.create_task(queue.take(10))
    impatient = asyncio.create_task(queue.take(3))
    await turn()
    clock.advance(3)
    with pytest.raises(standard.Empty, match="within 3"):
        await impatient
    clock.advance(7)
    assert await patient == "late"


@on_a_loop
async def test_poll_peek_drain_and_remove() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    assert queue.peek() is None
    handle = queue.put("x", 5)
    queue.put("y", 5)
    queue.put("z", 5)
    assert queue.peek() is handle
    assert [queue.remove(handle), queue.remove(handle)] == [True, False]
    assert (queue.poll("none"), len(queue)) == ("none", 2)
    clock.advance(5)
    assert [queue.poll(), queue.drain(), queue.drain(0)] == ["y", ["z"], []]
    with pytest.raises(ValueError, match="limit is negative"):
        queue.drain(-1)
    with pytest.raises(TypeError, match="what put returned"):
        queue.remove("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="into another queue"):
        AsyncDelayQueue[str](clock=clock).remove(handle)


@on_a_loop
async def test_removing_the_head_leaves_the_next_one_timed() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
    head = queue.put("head", 1)
    queue.put("next", 2)
    task = asyncio.create_task(queue.take())
    await turn()
    queue.remove(head)
    clock.advance(1)
    await turn()
    clock.advance(1)
    assert await task == "next"


@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_ends_the_waits(immediate: bool) -> None:
    async def main() -> None:
        clock = FakeClock()
        queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
        queue.put("last", 5)
        tasks = [asyncio.create_task(queue.take()) for _ in range(3)]
        await turn()
        assert queue.shutdown(immediate) == (["last"] if immediate else [])
        with pytest.raises(ShutDown):
            queue.put("too late")
        clock.advance(5)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = ["ShutDown" if isinstance(result, ShutDown) else result for result in results]
        assert kinds == ["ShutDown" if immediate else "last", "ShutDown", "ShutDown"]
        with pytest.raises(ShutDown):
            await queue.take()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_it_serves_one_loop_after_another_but_not_two_at_once() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[int] = AsyncDelayQueue(clock=clock)

    async def cancelled() -> None:
        queue.put(1, 5)
        task = asyncio.create_task(queue.take())
        await turn()
        task.cancel()

    asyncio.run(cancelled())
    clock.advance(5)
    assert asyncio.run(queue.take()) == 1

    async def waits(inner: bool) -> None:
        task = asyncio.create_task(queue.take())
        await turn()
        if inner:
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, queue.take())
        task.cancel()

    asyncio.run(waits(True))


@on_a_loop
async def test_a_crowd_comes_out_whole() -> None:
    clock = FakeClock()
    queue: AsyncDelayQueue[int] = AsyncDelayQueue(clock=clock)
    for number in range(5_000):
        queue.put(number, 86_400)
    task = asyncio.create_task(queue.take())
    await turn()
    clock.advance(86_399.9)
    await turn()
    clock.advance(0.1)
    assert await task == 0
    assert queue.drain() == list(range(1, 5_000))
