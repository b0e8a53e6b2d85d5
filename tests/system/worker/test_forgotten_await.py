"""Work that never ran, because an `await` is missing, is a dead letter and never acked."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import bide
from bide.testing import ScratchStore, WorkerFactory
from tests.system.worker.worker_app import Scene

ran: list[Any] = []

GoOn = Callable[[], Awaitable[None]]


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []
    gc.collect()  # asyncio logs what nobody awaited, which is not for the next test


async def send(body: Any) -> None:
    ran.append(body)


async def sends(body: Any) -> AsyncIterator[None]:
    ran.append(body)
    yield


async def never(body: Any) -> None:
    await asyncio.Event().wait()


def handler(app: bide.App) -> None:
    @app.handler("q")
    async def handle(body: Any) -> Any:
        return send(body)


def plain_handler(app: bide.App) -> None:
    app.handler("q")(lambda body: send(body))


def handler_with_a_check(app: bide.App) -> None:
    async def wanted(body: Any) -> Any:
        return send(body)

    @app.handler("q", still_wanted=wanted)
    async def handle(body: Any) -> None:
        ran.append(body)


def handler_that_gathers(app: bide.App) -> None:
    @app.handler("q")
    async def handle(body: Any) -> Any:
        return asyncio.gather(never(body), never(body))


def handler_that_generates(app: bide.App) -> None:
    @app.handler("q")
    async def handle(body: Any) -> Any:
        return sends(body)


def job(app: bide.App) -> None:
    @app.job("q", "send")
    class Send(bide.Job):
        async def run(self) -> Any:
            return send(self)


def schedule(app: bide.App) -> None:
    @app.schedule("q", every="1h")
    async def tick() -> Any:
        return send("tick")


def middleware(app: bide.App) -> None:
    @app.middleware
    async def around(delivery: bide.Delivery, go_on: GoOn) -> None:
        go_on()

    @app.handler("q")
    async def handle(body: Any) -> None:
        ran.append(body)


def middleware_of_a_plain_handler(app: bide.App) -> None:
    @app.middleware
    async def around(delivery: bide.Delivery, go_on: GoOn) -> Any:
        return go_on()

    app.handler("q")(ran.append)


@pytest.mark.parametrize(
    ("register", "told"),
    [
        (handler, r"handle returned a coroutine that .* await of send\(\.\.\.\) is missing"),
        (plain_handler, r"lambda> returned a coroutine that .* await of send\(\.\.\.\) is missing"),
        (handler_with_a_check, r"still_wanted of .* await of send\(\.\.\.\) is missing"),
        (handler_that_gathers, "did not wait for it: an await is missing"),
        (handler_that_generates, "returned a generator that was never run"),
        (job, r"run returned a coroutine that .* await of send\(\.\.\.\) is missing"),
        (schedule, r"tick returned a coroutine that .* await of send\(\.\.\.\) is missing"),
        (middleware, r"middleware .*around called go_on\(\) without await, so .*handle has not"),
        (middleware_of_a_plain_handler, r"around called go_on\(\) without await"),
    ],
)
def test_it_is_a_dead_letter_at_once(
    register: Callable[[bide.App], None],
    told: str,
    bide_worker: WorkerFactory,
    bide_store: ScratchStore,
) -> None:
    app = bide.App()
    register(app)
    worker = bide_worker(app, errors="collect")
    if register is not schedule:
        bide_store.queue("q").put({}, headers={"bide-job": "send"})
    worker.advance("1h")
    (letter,) = bide_store.dead("q")
    assert letter.attempt == 1
    with pytest.raises(TypeError, match=told):
        raise worker.errors[0]
    assert bide_store.queue("q").counts().flow.acked == 0


def test_a_worker_does_the_same(scene: Scene) -> None:
    async def story() -> None:
        handler(scene.app)
        await scene.put("a")
        async with scene.at_work():
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert letter.attempt == 1
        assert "the await of send(...) is missing" in letter.failures[-1].reason

    scene.play(story())


def test_middleware_that_awaits_or_skips_is_right(
    bide_worker: WorkerFactory, bide_store: ScratchStore
) -> None:
    app, seen = bide.App(), list[Any]()

    @app.middleware
    async def around(delivery: bide.Delivery, go_on: GoOn) -> None:
        if delivery.body == "task":
            await asyncio.create_task(go_on())  # type: ignore[arg-type]
        elif delivery.body != "skipped":
            await asyncio.wait_for(go_on(), 60)

    @app.handler("q")
    async def handle(body: str) -> None:
        seen.append(body)

    bide_store.queue("q").put_many(["task", "skipped", "awaited"])
    assert [one.outcome for one in bide_worker(app).run_due()] == ["acked"] * 3
    assert seen == ["task", "awaited"]
