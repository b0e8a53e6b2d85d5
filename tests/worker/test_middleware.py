"""Middleware and lifespan."""

import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

import bide
from tests.worker.worker_app import Scene, both, register

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


@both
def test_middleware_surrounds_every_delivery(scene: Scene, is_async: bool) -> None:
    seen: list[str] = []

    async def story() -> None:
        @scene.app.middleware
        async def outer(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            seen.append(f"outer {delivery.id}")
            tenant.set("ann")
            await go_on()
            seen.append("outer ends")

        @scene.app.middleware
        async def inner(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            seen.append("inner")
            try:
                await go_on()
            except ValueError as error:
                raise bide.Discard("seen in the middleware") from error

        def handle(body: str) -> None:
            seen.append(f"{body} for {tenant.get()}")
            if body == "bad":
                raise ValueError

        register(scene, is_async, handle)
        await scene.put("good", id="one")
        async with scene.at_work():
            await scene.acked(1)
            assert seen == ["outer one", "inner", "good for ann", "outer ends"]
            await scene.put("bad", id="two")
            await scene.acked(2)
        assert seen[-1] == "bad for ann"

    scene.play(story())


def test_middleware_that_does_not_go_on_has_handled_the_message(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.middleware
        async def skip(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            return

        scene.app.handler("q")(lambda body: pytest.fail("it must not be called"))
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)

    scene.play(story())


@pytest.mark.parametrize("error", [StopIteration("x"), ValueError("x"), SystemExit(1)])
def test_what_a_plain_handler_raises_comes_through_middleware(
    scene: Scene, error: BaseException
) -> None:
    async def story() -> None:
        @scene.app.middleware
        async def around(delivery: bide.Handling, go_on: Callable[[], Awaitable[None]]) -> None:
            await go_on()

        def handle(_: Any) -> None:
            raise error

        scene.app.handler("q", retry=bide.Backoff(attempts=1))(handle)
        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)
        assert "x" in str(error) or "SystemExit" in ((await scene.find("q-0")).error or "")

    scene.play(story())


def test_middleware_must_be_async() -> None:
    wrong: Any = lambda delivery, go_on: None  # noqa: E731
    with pytest.raises(bide.InvalidArgument, match="must be an async function"):
        bide.App("memory://").middleware(wrong)


@both
def test_a_lifespan_surrounds_the_work(scene: Scene, is_async: bool) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        app.state.pool = "pool"
        seen.append("open")
        yield
        seen.append("close")

    @contextmanager
    def plain_lifespan(app: bide.App) -> Iterator[None]:
        app.state.pool = "pool"
        seen.append("open")
        yield
        seen.append("close")

    async def story() -> None:
        scene.app.lifespan = lifespan if is_async else plain_lifespan

        @scene.app.handler("q")
        async def handle(delivery: bide.Handling) -> None:
            seen.append(delivery.state.pool)

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
        assert seen == ["open", "pool", "close"]

    scene.play(story())
