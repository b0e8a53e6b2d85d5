"""The batches that deliveries gather in, without a store or a worker."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from bide.consuming.batching import make_batch_handler
from bide.consuming.handling import Handler, Handling
from bide.model.message import Message


def batch_handler(function: Callable[..., Any], size: int) -> Handler:
    """Return the handler of a function whose batches wait a minute for more messages."""
    return make_batch_handler(
        function, size, "1m", None, None, None, in_thread=nullcontext, on_loop=nullcontext
    )


def started(handler: Handler, id: str) -> Handling:
    """Return a delivery that is about to join a batch in its own task; its body is its id."""
    message = Message(id, "q", f'"{id}"'.encode(), True, 0, 0, 1, 10, "leased")
    handling = Handling(message, 7, 0, handler, SimpleNamespace())

    async def attend() -> BaseException | None:
        try:
            await handler.call(handling)
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            return error
        return None

    handling.task = asyncio.get_running_loop().create_task(attend())
    return handling


async def ended(handling: Handling) -> BaseException | None:
    """Wait until a delivery has left its batch, and return what it raised."""
    assert handling.task is not None
    return await asyncio.wait_for(handling.task, 60)


def test_a_member_whose_lease_is_lost_as_the_batch_gets_full_is_not_handled() -> None:
    calls: list[list[str]] = []

    async def note(bodies: list[str]) -> None:
        calls.append(bodies)

    async def story() -> None:
        handler = batch_handler(note, 2)
        lost = started(handler, "a")
        await asyncio.sleep(0)  # it has joined
        last = started(handler, "b")
        lost.lose()  # its task ends after the other one has joined
        assert await ended(last) is None
        assert isinstance(await ended(lost), asyncio.CancelledError)

    asyncio.run(story())
    assert calls == [["b"]]


def test_a_batch_of_which_no_member_is_wanted_is_not_called() -> None:
    calls: list[list[str]] = []

    async def note(bodies: list[str]) -> None:
        calls.append(bodies)

    async def story() -> None:
        handler = batch_handler(note, 2)
        handlings = [started(handler, id) for id in "ab"]
        for handling in handlings:
            handling.ask_to_stop()
        for handling in handlings:
            assert isinstance(await ended(handling), asyncio.CancelledError)

    asyncio.run(story())
    assert calls == []
