"""What tasks hand in during one turn of their event loop is one batch."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bide.clock import Signal
from bide.lane.inbox import AsyncRequest, Inbox
from bide.lane.lane import Lane
from bide.model.commands import Count
from bide.model.replies import Outcomes
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from tests.lane.commands import PATIENCE, gathered, ids, put, spawn, waiting
from tests.lane.commands import claim as claim_of


@pytest.fixture
def loop(lane: Lane, clock: FakeClock) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that has used the lane, whose thread is at rest."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of tasks that a closed loop has left
    loop.run_until_complete(asyncio.wait_for(lane.acall(put("first")), PATIENCE))
    clock.wait_for_waiters()
    yield loop
    loop.close()


def leave_within_a_turn(loop: asyncio.AbstractEventLoop, lane: Lane, id: str) -> None:
    """Hand a command in, and close the loop before the turn in which that was done is over."""
    loop.create_task(lane.acall(put(id)))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


def test_what_tasks_hand_in_during_a_turn_is_one_batch(
    loop: asyncio.AbstractEventLoop, lane: Lane, engine: FlakyEngine
) -> None:
    async def main() -> None:
        await asyncio.gather(*(lane.acall(put(f"m{number}")) for number in range(5)))

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
    assert engine.batches == [[put("first")], [put(f"m{number}") for number in range(5)]]


def test_each_turn_has_its_batch(
    loop: asyncio.AbstractEventLoop, lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    async def main() -> None:
        for turn in range(3):
            await asyncio.gather(*(lane.acall(put(f"{turn}{name}")) for name in "ab"))
            await asyncio.to_thread(clock.wait_for_waiters)

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
    assert [len(batch) for batch in engine.batches] == [1, 2, 2, 2]


def test_a_thread_does_not_wait_for_the_turn_of_a_loop(
    loop: asyncio.AbstractEventLoop, lane: Lane, engine: FlakyEngine
) -> None:
    def block() -> None:  # the loop, in the turn in which the task has handed in
        gathered(lane, 1)
        assert isinstance(spawn(lane.call, put("thread")).result(PATIENCE), Outcomes)

    async def main() -> None:
        task = asyncio.create_task(lane.acall(put("task")))
        asyncio.get_running_loop().call_soon(block)
        await task

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
    assert engine.batches == [[put("first")], [put("task"), put("thread")]]


def test_the_command_of_a_loop_that_was_closed_within_a_turn_goes_with_the_next_one(
    loop: asyncio.AbstractEventLoop, lane: Lane, engine: FlakyEngine
) -> None:
    leave_within_a_turn(loop, lane, "left")
    gathered(lane, 1)
    assert engine.batches == [[put("first")]]
    assert isinstance(lane.call(put("next")), Outcomes)
    assert engine.batches == [[put("first")], [put("left"), put("next")]]


def test_the_command_of_a_loop_that_was_closed_within_a_turn_is_carried_out_on_closing(
    loop: asyncio.AbstractEventLoop, lane: Lane, engine: FlakyEngine
) -> None:
    leave_within_a_turn(loop, lane, "left")
    lane.close()
    assert engine.batches == [[put("first")], [put("left")]]


def test_what_a_claim_brings_after_its_loop_was_closed_goes_back(
    loop: asyncio.AbstractEventLoop, lane: Lane
) -> None:
    loop.create_task(lane.acall(claim_of()))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert ids(lane.call(claim_of(), wait=60)) == ["first"]
    waiting(lane, 0)


def test_a_closed_loop_is_forgotten(
    loop: asyncio.AbstractEventLoop, lane: Lane, clock: FakeClock
) -> None:
    other = asyncio.new_event_loop()
    other.set_exception_handler(lambda *_: None)
    leave_within_a_turn(other, lane, "left")
    gone = weakref.ref(other)
    del other
    lane.call(put("next"))
    clock.wait_for_waiters()
    loop.run_until_complete(asyncio.wait_for(lane.acall(put("other")), PATIENCE))
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("overlaps", "tasks", "sizes"),
    [
        (False, 100, [100]),
        (True, 63, [63]),
        (True, 64, [32, 32]),
        (True, 101, [51, 50]),
        (True, 300, [150, 150]),
    ],
)
def test_a_server_gets_many_commands_in_halves(
    loop: asyncio.AbstractEventLoop,
    lane: Lane,
    engine: FlakyEngine,
    monkeypatch: pytest.MonkeyPatch,
    overlaps: bool,
    tasks: int,
    sizes: list[int],
) -> None:
    able = msgspec.structs.replace(engine.capabilities, overlaps=overlaps)
    monkeypatch.setattr(type(engine), "capabilities", able)

    async def main() -> None:
        await asyncio.gather(*(lane.acall(put(f"m{number}")) for number in range(tasks)))

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
    assert [len(batch) for batch in engine.batches] == [1, *sizes]
    assert [c for batch in engine.batches[1:] for c in batch] == [
        put(f"m{number}") for number in range(tasks)
    ]


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

    signal = Signal()
    inbox = Inbox(signal)
    loop = Loop()
    request = AsyncRequest(Count("q"), loop=loop, future=loop.create_future())
    with pytest.raises(KeyboardInterrupt):
        inbox.add(request)
    inbox.add(request)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert signal.is_set()
