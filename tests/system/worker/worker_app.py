"""What the tests of the worker speak with: an app at work on a real file, by a clock of its own."""

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.model import body as bodies
from bide.model.commands import Command, Count, Find, Put, Scan
from bide.model.message import Item, Message
from bide.model.replies import Counts, Found, Page
from bide.testing import FakeClock, FlakyEngine
from bide.worker.process.runner import Runner

PATIENCE = 60.0
STUCK = 0.2
STRIDE = 30.0
"""Seconds by which the clock is moved on while nothing is due."""
FAST = bide.Backoff(attempts=3, first="10s", factor=2, jitter=0)

both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])


class Scene:
    """A store, an app that has no handlers yet, and a runner for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.app = bide.App("memory://", clock=self.clock)
        self.open()

    def open(self) -> None:
        """Open the store; again after `close`."""
        self.engine = FlakyEngine(SqliteEngine(self.path, durability="normal", timeout=0.05))
        self.lane = Lane(lambda: self.engine, self.clock)

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(story, 90))

    @asynccontextmanager
    async def at_work(self, **options: Any) -> AsyncIterator[Runner]:
        ready = asyncio.Event()
        runner = Runner(self.app, lane=self.lane, ready=ready.set, **options)
        task = asyncio.create_task(runner.run())
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield runner
        finally:
            waiting.cancel()
            runner.stop(hurry=True)
            while not (await asyncio.wait([task], timeout=0.2))[0]:
                self.clock.advance(0.5)  # something runs still
        await task

    async def pass_time(
        self, condition: Callable[[], object], step: float = 0.1, pause: float = 0.002
    ) -> None:
        """Move the clock on until something comes to pass, however late others begin to wait.

        With steps longer than a lease a `pause` leaves a slow machine the time to handle a message.
        """
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            await self.step(step, pause)

    async def step(self, seconds: float, pause: float = 0.002) -> None:
        await step(self.clock, self.lane, seconds, pause)

    async def pass_calmly(self, condition: Callable[[], object], step: float = 1) -> None:
        """Move the clock on, but only while each source and schedule waits for its moment.

        It goes on by a step, or by a stride while none of these moments is near.
        So however slow the machine is, none is late by the clock that the test moves. Some wait for
        less than a moment (to look again, or for a store that is away) and began only after the
        clock was last moved: for them it goes on a little when nothing else does.
        """
        deadline = time.monotonic() + PATIENCE
        stuck = time.monotonic() + STUCK
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            left = await self._left()
            if condition():  # it came to pass meanwhile: all waits may be for what comes next
                return
            if calm := left > 0:
                self.clock.advance(max(step, min(left - step, STRIDE)) if left < math.inf else step)
            elif time.monotonic() > stuck:
                self.clock.advance(0.5)
            if calm or time.monotonic() > stuck:
                stuck = time.monotonic() + STUCK
            await asyncio.sleep(0.001)

    async def _left(self) -> float:
        """Return for how many seconds each source and schedule waits; 0: one is at work."""
        left = math.inf
        for queue in [*self.app.sources, *self.app.schedules]:
            leased = await self.lane.acall(Scan(queue, "leased"))
            waiting = await self.lane.acall(Scan(queue, "next"))
            assert isinstance(leased, Page)
            assert isinstance(waiting, Page)
            dues = [message.due for message in waiting.messages]
            if leased.messages or not dues:
                return 0
            left = min(left, (min(dues) - self.clock.now()) / 1000)
        return left

    async def put(self, *values: Any, queue: str = "q", **options: Any) -> list[str]:
        items = []
        for number, value in enumerate(values):
            data, is_json = bodies.encode(value)
            id = options.get("id") or f"{queue}-{number}"
            more = {key: value for key, value in options.items() if key != "id"}
            items.append(Item(id, data, is_json, **more))
        await self.lane.acall(Put(queue, items))
        return [item.id for item in items]

    async def counts(self, queue: str = "q") -> Counts:
        reply = await self.lane.acall(Count(queue))
        assert isinstance(reply, Counts)
        return reply

    async def acked(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts_in_file(queue).flow.acked == count)

    async def dead(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts_in_file(queue).sizes.dead == count)

    async def delayed(self, count: int, queue: str = "q") -> None:
        await until(lambda: self.counts_in_file(queue).sizes.delayed == count)

    def counts_in_file(self, queue: str) -> Counts:
        """Return the counts of a queue without the worker's lane, which may be at work."""
        reader = SqliteEngine(self.path, read_only=True)
        (reply,) = reader.execute([Count(queue)], self.clock.now())
        reader.close()
        assert isinstance(reply, Counts)
        return reply

    async def find(self, id: str, queue: str = "q") -> Message:
        reply = await self.lane.acall(Find(queue, [id]))
        assert isinstance(reply, Found)
        assert reply.messages[0] is not None
        return reply.messages[0]

    def sent(self, kind: type[Command]) -> list[Any]:
        """Return the commands of a kind that have reached the store."""
        return [one for batch in list(self.engine.batches) for one in batch if type(one) is kind]

    def close(self) -> None:
        self.engine.heal()
        self.lane.close()
        self.engine.close()  # a lane that was never asked has none to close


def more(count: Callable[[], int]) -> Callable[[], bool]:
    """Return what tells whether a count has grown from now on."""
    before = count()
    return lambda: count() > before


async def step(clock: FakeClock, lane: Lane, seconds: float, pause: float) -> None:
    """Move the clock on, and let tasks and the store do what it was time for.

    So a lane that is slow, because others have the processor, does not miss a lease.
    """
    deadline = time.monotonic() + PATIENCE
    clock.advance(seconds)
    calm = 0
    while calm < 2:  # what the first commands were for may send others
        assert time.monotonic() < deadline, "the lane is never idle"
        await asyncio.sleep(pause / 2)
        calm = calm + 1 if _idle(lane) else 0


def _idle(lane: Lane) -> bool:
    """Tell whether a lane has no commands to execute."""
    return lane.is_idle


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.001)


def entered(one: bide.Handling) -> bool:
    """Tell whether the task of a delivery has taken its first step."""
    if one.task is None:
        return True
    return inspect.getcoroutinestate(one.task.get_coro()) != "CORO_CREATED"  # type: ignore[arg-type]


def register(scene: Scene, is_async: bool, handle: Callable[[Any], Any], **options: Any) -> None:
    """Let a function handle queue q, from a task or from a thread."""
    if is_async:

        async def on_loop(body: Any) -> Any:
            return handle(body)

        scene.app.handler("q", **options)(on_loop)
    else:
        scene.app.handler("q", **options)(handle)
