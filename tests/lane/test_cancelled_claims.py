"""A claim whose caller has gone gives its messages back at once."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from bide.lane.inbox import AsyncRequest
from bide.lane.lane import Lane
from bide.model.commands import RetryCommand
from bide.model.errors import StoreBusy
from bide.model.replies import Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_submitted, count_waiting, has_waiting_queues, is_closing
from tests.lane.commands import PATIENCE, claim, claims, ids, put, sizes, waiting
from tests.waiting import until

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
            lane._inbox.requests.extend(leader)  # as if it was to ask with the next batch
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
    assert count_waiting(lane) == 0
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
