"""Async code that does not run on asyncio."""

from collections.abc import Awaitable, Callable

import pytest
import trio

import bide


async def use_a_queue() -> None:
    async with bide.AsyncQueue("orders", "memory://") as orders:
        await orders.put(1)


async def call_once() -> None:
    await bide.AsyncQueue("orders", "memory://").get("a")


async def run_an_app() -> None:
    app = bide.App("memory://")
    app.handler("orders")(lambda body: None)
    async with app.running():
        pass


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (use_a_queue, "bide.AsyncQueue"),
        (call_once, "bide.AsyncQueue"),
        (run_an_app, r"app\.running\(\)"),
    ],
)
def test_trio_is_told_to_use_a_thread(work: Callable[[], Awaitable[None]], what: str) -> None:
    with pytest.raises(
        bide.WrongContext, match=rf"{what} needs a running event loop of asyncio.*bide\.Queue.*trio"
    ):
        trio.run(work)
