"""What threads hand in meanwhile, and tasks during one turn of their loop, is one batch."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from bide.clock import Signal
from bide.engines.port import Identities
from bide.lane.inbox import MAX_COMMANDS, AsyncRequest, Inbox
from bide.lane.lane import Lane
from bide.model.commands import Command, Count, Put
from bide.model.errors import OutcomeUnknown, StoreBusy, StoreError, StoreFull
from bide.model.replies import Outcomes, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import batch_waits
from bide.threads import Background
from tests.unit.lane.commands import PATIENCE, claim, gathered, ids, put, sizes, spawn, waiting
from tests.unit.lane.commands import claim as claim_of
from tests.waiting import until


def is_put_of(id: str) -> Callable[[Command], bool]:
    return lambda command: isinstance(command, Put) and command.items[0].id == id


def together(lane: Lane, engine: FlakyEngine, *commands: Command) -> "list[Future[Reply]]":
    """Have commands of as many threads travel in one batch, in this order."""
    with engine.held():
        first = spawn(lane.call, put("first"))
        engine.wait_until_held()
        second = spawn(lane.call, put("second"))
        until(lambda: batch_waits(lane))  # the lane's thread is at the door
        futures = []
        for number, command in enumerate(commands, 1):
            futures.append(spawn(lane.call, command))
            gathered(lane, number)
    first.result(PATIENCE)
    second.result(PATIENCE)
    for future in futures:
        future.exception(PATIENCE)
    return futures


def outcome(future: "Future[Reply]") -> object:
    error = future.exception(PATIENCE)
    if error is not None:
        return type(error)
    reply = future.result()
    return ids(reply) if not isinstance(reply, Outcomes) else [o.id for o in reply.outcomes]


def test_callers_go_on_only_after_the_engine_has_committed(lane: Lane, engine: FlakyEngine) -> None:
    with engine.held():
        alone = spawn(lane.call, put("a"))
        engine.wait_until_held()
        shared = spawn(lane.call, put("b"))
        until(lambda: batch_waits(lane))
        assert not alone.done()
        assert not shared.done()
    assert outcome(alone) == ["a"]
    assert outcome(shared) == ["b"]


def test_a_task_goes_on_only_after_the_engine_has_committed(
    lane: Lane, engine: FlakyEngine
) -> None:
    async def main() -> None:
        with engine.held():
            task = asyncio.create_task(lane.acall(put("a")))
            await asyncio.to_thread(engine.wait_until_held)
            assert not task.done()
        await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_a_lone_thread_executes_by_itself(lane: Lane, engine: FlakyEngine) -> None:
    lane.call(put("a"))
    assert not lane._worker.was_started
    assert engine.batches == [[put("a")]]


def test_what_gathers_while_the_engine_works_is_one_batch(lane: Lane, engine: FlakyEngine) -> None:
    commands = [put(f"m{number}") for number in range(5)]
    together(lane, engine, *commands)
    assert engine.batches == [[put("first")], [put("second")], commands]


def test_nothing_lingers_to_gather_more(lane: Lane, clock: FakeClock) -> None:
    async def main() -> None:
        await asyncio.wait_for(lane.acall(put("a")), PATIENCE)

    asyncio.run(main())
    assert clock.monotonic() == 1_000.0  # the clock never moved: nobody waited for time to pass


def test_a_batch_is_bounded_by_commands(lane: Lane, engine: FlakyEngine) -> None:
    count = MAX_COMMANDS + 3

    async def main() -> None:
        with engine.held():
            first = asyncio.create_task(lane.acall(put("first")))
            await asyncio.to_thread(engine.wait_until_held)
            rest = [asyncio.create_task(lane.acall(put(f"m{n}"))) for n in range(count)]
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(first, *rest), PATIENCE)

    asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [1, MAX_COMMANDS, 3]


def test_a_batch_is_bounded_by_messages(lane: Lane, engine: FlakyEngine) -> None:
    big = [put(*(f"{name}{n}" for n in range(15_000))) for name in "abc"]
    together(lane, engine, *big)
    assert [len(batch) for batch in engine.batches] == [1, 1, 2, 1]


def test_one_batch_wakes_an_event_loop_once(
    lane: Lane, engine: FlakyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe

        def counted(*args: Any) -> object:
            calls.append(threading.current_thread().name)
            return real(*args)

        with engine.held():
            first = asyncio.create_task(lane.acall(put("first")))
            await asyncio.to_thread(engine.wait_until_held)
            rest = [asyncio.create_task(lane.acall(put(f"m{n}"))) for n in range(50)]
            await asyncio.sleep(0)
            monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await asyncio.wait_for(asyncio.gather(first, *rest), PATIENCE)

    asyncio.run(main())
    assert len(engine.batches) == 2
    assert calls.count("bide-lane") == 2


def test_only_the_guilty_caller_sees_the_error_of_a_poisoned_batch(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    engine.fail(ValueError("poison"), when=is_put_of("b"), times=None)
    futures = together(lane, engine, put("a"), put("b"), put("c"))
    assert [outcome(future) for future in futures] == [["a"], ValueError, ["c"]]
    assert sizes(engine, clock.now()) == (0, 4, 0)


def test_a_store_that_cannot_be_reached_is_not_asked_once_a_command(
    lane: Lane, engine: FlakyEngine
) -> None:
    engine.fail(StoreBusy("locked"), when=is_put_of("a"), times=None)
    futures = together(lane, engine, put("a"), put("b"), put("c"))
    assert [outcome(future) for future in futures] == [StoreBusy] * 3
    assert len(engine.batches) == 3
    errors = [future.exception() for future in futures]
    assert len({id(error) for error in errors}) == 3  # each has a traceback of its own


def test_a_full_store_still_takes_what_fits(lane: Lane, engine: FlakyEngine) -> None:
    engine.fail(StoreFull("full"), when=is_put_of("big"), times=None)
    futures = together(lane, engine, put("big"), claim())
    assert [outcome(future) for future in futures] == [StoreFull, ["first"]]


def test_a_thread_that_always_comes_back_at_once_starves_nobody(
    lane: Lane, engine: FlakyEngine
) -> None:
    with engine.held():
        busy = spawn(lambda: [lane.call(put(f"busy{n}")) for n in range(20)])
        engine.wait_until_held()
        other = spawn(lane.call, put("other"))
        until(lambda: batch_waits(lane))
    other.result(PATIENCE)
    busy.result(PATIENCE)
    assert engine.batches.index([put("other")]) == 1


def test_nobody_goes_alone_while_a_batch_waits_for_its_turn(
    lane: Lane, engine: FlakyEngine
) -> None:
    lane._batch_waits = True
    assert lane._execute_now(put("a"), None) is None
    lane._batch_waits = False
    assert lane._execute_now(put("a"), None) is not None


def test_an_engine_that_answers_too_little_hurts_nobody_else(
    lane: Lane, engine: FlakyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.engine.execute

    def forgetful(
        commands: list[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        replies = real(commands, now, identities)
        return replies[:-1] if len(commands) > 1 or is_put_of("b")(commands[0]) else replies

    monkeypatch.setattr(engine.engine, "execute", forgetful)
    futures = together(lane, engine, put("a"), put("b"))
    assert [outcome(future) for future in futures] == [["a"], ValueError]


@pytest.mark.parametrize("error", [SystemExit("bye"), KeyboardInterrupt()])
def test_after_an_interrupt_of_the_engine_no_command_of_the_batch_is_executed_again(
    lane: Lane, engine: FlakyEngine, error: BaseException
) -> None:
    engine.fail(error, when=is_put_of("a"), after=True)
    futures = together(lane, engine, put("a"), put("b"))
    for future in futures:
        unknown = future.exception(PATIENCE)
        assert isinstance(unknown, OutcomeUnknown)
        assert unknown.__cause__ is error
    assert engine.batches[-1] == [put("a"), put("b")]


def test_an_engine_that_breaks_off_oddly_is_an_error_that_everybody_can_catch(
    lane: Lane, engine: FlakyEngine
) -> None:
    error = StopIteration("odd")
    engine.fail(error, when=is_put_of("a"), times=None)

    async def main() -> list[object]:
        tasks = [asyncio.create_task(lane.acall(put(id))) for id in "ab"]
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)

    broken, fine = asyncio.run(main())
    assert isinstance(broken, StoreError)
    assert "bug" in str(broken)
    assert broken.__cause__ is error
    assert isinstance(fine, Outcomes)


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


def test_the_commands_of_many_tasks_are_one_batch(
    loop: asyncio.AbstractEventLoop, lane: Lane, engine: FlakyEngine
) -> None:
    async def main() -> None:
        await asyncio.gather(*(lane.acall(put(f"m{number}")) for number in range(300)))

    loop.run_until_complete(asyncio.wait_for(main(), PATIENCE))
    assert [len(batch) for batch in engine.batches] == [1, 300]
    assert engine.batches[1] == [put(f"m{number}") for number in range(300)]


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
    inbox = Inbox(signal, Background("bide-lane", lambda: None))
    loop = Loop()
    request = AsyncRequest(Count("q"), loop=loop, future=loop.create_future())
    with pytest.raises(KeyboardInterrupt):
        inbox.add(request)
    inbox.add(request)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert signal.is_set()
