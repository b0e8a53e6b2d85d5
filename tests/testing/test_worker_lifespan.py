"""Where a worker driven by hand is: its lifespan, its end, and on an event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bide
from bide.testing import AsyncManualWorker, ManualWorker, ScratchStore
from tests.testing.handlers import both, register


@both
def test_middleware_and_lifespan_surround_the_work(store: ScratchStore, is_async: bool) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        told.append("open")
        app.state.pool = asyncio.current_task()
        yield
        assert app.state.pool is asyncio.current_task()
        told.append("close")

    app = bide.App(lifespan=lifespan)
    app.state.given = 1

    @app.middleware
    async def around(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        assert delivery.state.given == 1
        told.append("before")
        await go_on()
        told.append("after")

    register(app, lambda body, _: told.append(body), is_async=is_async)
    store.queue("q").put("handled")
    with ManualWorker(app, store) as worker:
        assert app.clock is store.clock
        assert told == ["open"]
        worker.run_due()
    assert told == ["open", "before", "handled", "after", "close"]
    assert vars(app.state) == {"given": 1}
    assert app.clock is not store.clock


def test_a_lifespan_that_fails_says_so_at_once(store: ScratchStore) -> None:
    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    app = bide.App(lifespan=lifespan)
    register(app, lambda *_: None)
    with pytest.raises(OSError, match="no database"):
        ManualWorker(app, store)


def test_a_lifespan_that_fails_later_ends_the_deliveries(store: ScratchStore) -> None:
    failing = asyncio.Event()

    async def watch() -> None:
        await failing.wait()
        raise OSError("no database")

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            yield

    app = bide.App(lifespan=lifespan)

    @app.handler("q")
    async def handle(body: int) -> None:
        failing.set()
        await asyncio.sleep(0.05)

    store.queue("q").put_many([1, 2])

    async def story() -> None:
        worker = await AsyncManualWorker(app, store).__aenter__()
        with pytest.raises(ExceptionGroup) as caught:
            await worker.run_due()
        assert "no database" in str(caught.value.exceptions[0])
        assert [one.body for one in worker.handled] == [1]
        with pytest.raises(ExceptionGroup):
            await worker.__aexit__()

    asyncio.run(story())


def test_a_wrong_choice_is_refused(app: bide.App, store: ScratchStore) -> None:
    with pytest.raises(bide.InvalidArgument, match="app has no handlers"):
        ManualWorker(app, store)
    register(app, lambda *_: None)
    wrong: Any = "ignore"
    with pytest.raises(bide.InvalidArgument, match=r'errors=.ignore. must be "raise" or "collect"'):
        ManualWorker(app, store, errors=wrong)


def test_closing_twice_does_nothing(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    worker = ManualWorker(app, store)
    worker.close()
    worker.close()
    with pytest.raises(bide.Closed, match="this worker was closed"):
        worker.run_due()


def test_on_an_event_loop_it_names_the_other(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)

    async def story() -> None:
        with ManualWorker(app, store):
            pass

    with pytest.raises(bide.WrongContext, match="bide_async_worker"):
        asyncio.run(story())


@both
def test_the_async_form_does_the_same(app: bide.App, store: ScratchStore, is_async: bool) -> None:
    seen: list[Any] = []

    def handle(body: Any, delivery: bide.Delivery) -> None:
        seen.append(body)
        if body == "bad":
            raise ValueError("bad")

    register(app, handle, is_async=is_async)

    async def story() -> None:
        async with bide.AsyncQueue("q") as queue, AsyncManualWorker(app, store) as worker:
            await queue.put("good", delay="30m")
            assert await worker.run_due() == []
            assert [one.outcome for one in await worker.advance("30m")] == ["acked"]
            await queue.put("bad", id="bad")
            with pytest.raises(ValueError, match="bad"):
                await worker.run_due()
            assert len(worker.errors) == 1
            store.assert_put("q", "bad")  # assertions do not mind the loop
            with pytest.raises(ValueError, match="bad"):
                await worker.advance_to(store.clock.now() / 1000 + 60)

    asyncio.run(story())
    assert seen == ["good", "bad", "bad"]


def test_two_calls_at_a_time_make_one_delivery_after_the_other(
    app: bide.App, store: ScratchStore
) -> None:
    register(app, lambda *_: None)
    store.queue("q").put_many(range(6))

    async def story() -> None:
        async with AsyncManualWorker(app, store) as worker:
            await asyncio.gather(worker.run_due(), worker.run_due())
            assert [one.body for one in worker.handled] == [*range(6)]
            assert {one.outcome for one in worker.handled} == {"acked"}

    asyncio.run(story())


def test_the_lifespan_lasts_until_the_calls_have_ended(store: ScratchStore) -> None:
    told: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        yield
        told.append("close")

    app = bide.App(lifespan=lifespan)

    @app.handler("q")
    async def handle(body: Any) -> None:
        await asyncio.sleep(0.01)
        told.append(body)

    store.queue("q").put_many(["one", "two"])

    async def story() -> None:
        async with AsyncManualWorker(app, store) as worker:
            calls = [asyncio.create_task(worker.run_due()) for _ in range(2)]
            await asyncio.sleep(0)
        first, second = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, list)
        assert isinstance(second, bide.Closed)

    asyncio.run(story())
    assert told == ["one", "two", "close"]


def test_a_cancelled_call_leaves_its_message_due(app: bide.App, store: ScratchStore) -> None:
    begun = asyncio.Event()

    @app.handler("q")
    async def handle(body: int) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)

    store.queue("q").put(1)

    async def story() -> None:
        async with AsyncManualWorker(app, store) as worker:
            call = asyncio.create_task(worker.run_due())
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert [one.attempt for one in await worker.run_due()] == [1]

    asyncio.run(story())


def test_the_async_form_is_to_be_entered(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)

    async def story() -> None:
        with pytest.raises(bide.Closed, match="async with"):
            await AsyncManualWorker(app, store).run_due()

    asyncio.run(story())


def test_both_forms_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(ManualWorker) - {"close", "app", "store", "handled"} == public(AsyncManualWorker)
