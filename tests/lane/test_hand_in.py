"""What a task hands in at once: the short way for whatever is no claim."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bide.lane import Lane
from bide.lane.inbox import Inbox
from bide.lane.request import AsyncRequest
from bide.model.commands import Cancel, Command, Count, Where
from bide.model.errors import Closed, StoreFull
from bide.model.replies import Outcomes, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from tests.lane.commands import PATIENCE, claim, eventually, put, sizes


@pytest.fixture
def tiny(engine: FlakyEngine, clock: FakeClock) -> Iterator[Lane]:
    lane = Lane(lambda: engine, clock, inbox=1)
    yield lane
    lane.close()


async def handed_in(lane: Lane, command: Command) -> Reply:
    future = lane.hand_in(command)
    assert future is not None
    return await asyncio.wait_for(future, PATIENCE)


def test_it_is_carried_out_and_answered(lane: Lane) -> None:
    async def main() -> list[Reply]:
        return await asyncio.gather(*(handed_in(lane, put(id)) for id in "abc"))

    replies = asyncio.run(main())
    assert [reply.outcomes[0].id for reply in replies if isinstance(reply, Outcomes)] == [*"abc"]


def test_each_hears_of_its_own_error(lane: Lane, engine: FlakyEngine) -> None:
    async def main() -> list[Reply | BaseException]:
        engine.fail(StoreFull("full"), when=lambda command: command == put("b"), times=None)
        commands = [handed_in(lane, put(id)) for id in "abc"]
        return await asyncio.gather(*commands, return_exceptions=True)

    told = asyncio.run(main())
    assert [type(each) for each in told] == [Outcomes, StoreFull, Outcomes]


def test_who_was_cancelled_has_it_carried_out_all_the_same(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    async def main() -> None:
        with engine.held():
            task = asyncio.create_task(handed_in(lane, put("a")))
            await asyncio.to_thread(engine.wait_until_held)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await handed_in(lane, put("b"))

    asyncio.run(main())
    eventually(lambda: sizes(engine, clock.now()) == (0, 2, 0))


def test_what_takes_more_is_left_to_others(lane: Lane, engine: FlakyEngine) -> None:
    async def main() -> None:
        dry = Cancel("q", where=Where(group="g"), dry_run=True)
        assert [lane.hand_in(command) for command in (claim(), Count("q"), dry)] == [None] * 3

    asyncio.run(main())
    assert engine.batches == []


def test_a_full_inbox_takes_nothing_in(tiny: Lane, engine: FlakyEngine) -> None:
    async def main() -> None:
        with engine.held():
            first = asyncio.create_task(handed_in(tiny, put("a")))
            await asyncio.to_thread(engine.wait_until_held)
            second = asyncio.create_task(handed_in(tiny, put("b")))
            await asyncio.sleep(0)
            assert tiny.hand_in(put("c")) is None
        await asyncio.gather(first, second)
        await handed_in(tiny, put("d"))

    asyncio.run(main())
    assert engine.batches == [[put("a")], [put("b")], [put("d")]]


def test_a_closed_lane_refuses(lane: Lane) -> None:
    async def main() -> None:
        lane.close()
        with pytest.raises(Closed):
            lane.hand_in(put("a"))

    asyncio.run(main())


def test_who_was_interrupted_while_handing_in_makes_no_loop_deaf() -> None:
    class Loop(asyncio.SelectorEventLoop):
        interrupts = 1

        def call_soon(  # type: ignore[override]
            self, *arguments: Any, **options: Any
        ) -> asyncio.Handle:
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return super().call_soon(*arguments, **options)

    notified: list[int] = []
    inbox = Inbox(threading.RLock(), 10, lambda: notified.append(1))
    loop = Loop()
    request = AsyncRequest(Count("q"), loop=loop, future=loop.create_future())
    with pytest.raises(KeyboardInterrupt):
        inbox.add(request)
    inbox.add(request)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert notified
