"""How handlers run: each in a context and a task of its own."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Any

import pytest

from bide.consuming.handling import Handler, Handling
from bide.consuming.run import Run
from bide.model.message import Message
from tests.worker.processes import BOUND
from tests.worker.worker_app import entered, until

FACTORIES = [None]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)

user: ContextVar[str] = ContextVar("user", default="nobody")


class Stage:
    """Deliveries without a consumer, and what their handlers raised."""

    def __init__(self, function: Callable[[Handling], Any], concurrency: int = 1) -> None:
        is_async = iscoroutinefunction(function)
        self.handler = Handler("handle", function, is_async)
        self.ended: dict[int, BaseException | None] = {}
        self.run = Run((), concurrency, self._end)
        self._changed = asyncio.Event()
        self._count = 0

    def start(self, count: int) -> list[Handling]:
        ones = []
        for number in range(self._count, self._count + count):
            message = Message(str(number), "q", b"1", True, 0, 0, 1, 10, "leased")
            ones.append(Handling(message, number, 0, self.handler, SimpleNamespace()))
            self.run.start(ones[-1])
        self._count += count
        return ones

    async def until(self, count: int) -> list[BaseException | None]:
        async with asyncio.timeout(10):
            while len(self.ended) < count:
                await self._changed.wait()
                self._changed.clear()
        return [self.ended[number] for number in sorted(self.ended)]

    def _end(self, one: Handling, error: BaseException | None) -> None:
        self.ended[one.token] = error
        self._changed.set()


@pytest.fixture(params=FACTORIES)
def play(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Play a story, on loops that begin tasks late, and early where Python knows that."""

    async def prepared(story: Awaitable[None]) -> None:
        asyncio.get_running_loop().set_task_factory(request.param)
        await story

    return lambda story: asyncio.run(prepared(story))


Play = Callable[[Awaitable[None]], None]


@pytest.mark.parametrize("waits", [0, 1, 3])
def test_what_one_handler_keeps_in_its_context_no_other_sees(play: Play, waits: int) -> None:
    seen: list[tuple[str, str]] = []

    async def handle(one: Handling) -> None:
        before = user.get()
        user.set(one.id)
        for _ in range(waits):
            await asyncio.sleep(0)
        seen.append((before, user.get()))

    async def story() -> None:
        stage = Stage(handle)
        stage.start(10)
        await stage.until(10)
        stage.start(10)
        await stage.until(20)

    play(story())
    assert sorted(seen) == sorted([("nobody", str(n)) for n in range(20)])


def test_a_handler_sees_what_was_set_around_the_worker(play: Play) -> None:
    seen: list[str] = []

    async def handle(_: Handling) -> None:
        seen.append(user.get())

    async def story() -> None:
        user.set("worker")
        stage = Stage(handle)
        user.set("later")
        stage.start(1)
        await stage.until(1)

    play(story())
    assert seen == ["worker"]


def test_a_plain_handler_keeps_its_context_to_itself_too() -> None:
    seen: list[str] = []

    def handle(one: Handling) -> None:
        seen.append(user.get())
        user.set(one.id)

    async def story() -> None:
        user.set("worker")
        stage = Stage(handle)
        stage.start(10)
        assert await stage.until(10) == [None] * 10
        stage.run.threads.close()

    asyncio.run(story())
    assert seen == ["worker"] * 10


def test_plain_handlers_that_block_all_get_a_thread() -> None:
    """Also those that were started while the first ones already waited for another thread."""
    together = threading.Barrier(8)

    def handle(_: Handling) -> None:
        together.wait(BOUND)

    async def story() -> None:
        stage = Stage(handle, concurrency=8)
        stage.start(3)
        await until(lambda: together.n_waiting == 3)
        stage.start(5)
        assert await stage.until(8) == [None] * 8
        stage.run.threads.close()

    asyncio.run(story())


def test_one_that_waits_holds_up_nobody(play: Play) -> None:
    async def story() -> None:
        gate = asyncio.Event()
        order: list[str] = []

        async def handle(one: Handling) -> None:
            order.append(one.id)
            if one.token % 2 == 0:
                await gate.wait()

        stage = Stage(handle)
        stage.start(100)
        await stage.until(50)
        assert sorted(stage.ended) == list(range(1, 100, 2))
        assert order == [str(number) for number in range(100)]
        gate.set()
        assert await stage.until(100) == [None] * 100

    play(story())


def test_handlers_that_wait_are_interrupted_one_by_one(play: Play) -> None:
    async def story() -> None:
        async def handle(one: Handling) -> None:
            if one.token > 0:
                await asyncio.Event().wait()

        stage = Stage(handle)
        ones = stage.start(4)
        await stage.until(1)
        await until(lambda: all(entered(one) for one in ones))
        ones[2].cancel()
        assert isinstance((await stage.until(2))[1], asyncio.CancelledError)
        assert sorted(stage.ended) == [0, 2]
        ones[1].cancel()
        ones[3].cancel()
        assert len(await stage.until(4)) == 4

    play(story())


def test_one_that_is_interrupted_before_it_begins_never_begins() -> None:
    begun: list[str] = []

    async def handle(one: Handling) -> None:
        begun.append(one.id)

    async def story() -> None:
        stage = Stage(handle)
        ones = stage.start(3)
        ones[1].cancel()
        errors = await stage.until(3)
        assert [type(error) for error in errors] == [type(None), asyncio.CancelledError, type(None)]

    asyncio.run(story())
    assert begun == ["0", "2"]


def test_a_handler_that_cancels_its_own_task_strikes_no_other(play: Play) -> None:
    async def handle(one: Handling) -> None:
        if one.token == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)

    async def story() -> None:
        stage = Stage(handle)
        stage.start(5)
        first, *others = await stage.until(5)
        assert isinstance(first, asyncio.CancelledError)
        assert others == [None] * 4

    play(story())


def test_what_a_handler_uses_of_its_task_works(play: Play) -> None:
    found: list[object] = []

    async def handle(one: Handling) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task is one.task
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            found.append(task.cancelling())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
                group.create_task(_fail())
        except* OSError:
            found.append("failed")
        assert user.get() == "nobody"
        await asyncio.gather(_set_user(), asyncio.to_thread(int))
        assert asyncio.current_task() is task

    async def _fail() -> None:
        raise OSError

    async def _set_user() -> None:
        user.set("child")

    async def story() -> None:
        stage = Stage(handle)
        stage.start(3)
        assert await stage.until(3) == [None] * 3

    play(story())
    assert sorted(found, key=str) == [0] * 3 + ["failed"] * 3


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), StopAsyncIteration()])
def test_what_one_raises_is_its_own(play: Play, error: BaseException) -> None:
    async def handle(one: Handling) -> None:
        if one.token == 1:
            raise error
        if one.token == 2:
            await asyncio.sleep(0)
            raise error

    async def story() -> None:
        stage = Stage(handle)
        stage.start(5)
        assert await stage.until(5) == [None, error, error, None, None]

    play(story())


def test_a_loop_that_is_closed_ends_what_waits() -> None:
    ended: list[str] = []

    async def handle(one: Handling) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(one.id)

    async def story() -> None:
        stage = Stage(handle)
        ones = stage.start(3)
        await until(lambda: all(entered(one) for one in ones))

    asyncio.run(story())
    assert sorted(ended) == ["0", "1", "2"]
