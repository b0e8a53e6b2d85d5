"""The batches that deliveries gather in, without a store or a worker."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from bide.consuming.batching import make_batch_handler
from bide.consuming.handling import Handler, Handling
from bide.model.message import Failure, Message


def batch_handler(function: Callable[..., Any], size: int) -> Handler:
    """Return the handler of a function whose batches wait a minute for more messages."""
    return make_batch_handler(
        function, size, "1m", None, None, None, in_thread=nullcontext, on_loop=nullcontext
    )


def started(handler: Handler, id: str, failures: int = 0) -> Handling:
    """Return a delivery that is about to join a batch in its own task; its body is its id."""
    body, history = f'"{id}"'.encode(), (Failure(1, 0, "", "failed"),) * failures
    message = Message(id, "q", body, True, 0, 0, 1, 10, "leased", failures=history)
    handling = Handling(message, 7, 0, handler, SimpleNamespace())

    async def attend() -> BaseException | None:
        try:
            await handler.call(handling)
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            return error
        return None

    handling.task = asyncio.get_running_loop().create_task(attend())
    return handling


def has_ended(handling: Handling) -> bool:
    assert handling.task is not None
    return handling.task.done()


async def turns() -> None:
    """Let tasks go on until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


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


def test_a_member_that_is_given_up_runs_until_its_async_call_has_ended() -> None:
    log: list[str] = []

    async def story() -> None:
        began, cleaned_up = asyncio.Event(), asyncio.Event()

        async def handle(bodies: list[str]) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                log.append("interrupted")
                await cleaned_up.wait()

        handler = batch_handler(handle, 2)
        handlings = [started(handler, id) for id in "ab"]
        await began.wait()
        handlings[0].lose()
        await turns()
        assert log == []  # the other one goes on
        handlings[1].lose()
        await turns()
        assert log == ["interrupted"]
        assert not any(has_ended(handling) for handling in handlings)
        cleaned_up.set()
        for handling in handlings:
            assert isinstance(await ended(handling), asyncio.CancelledError)

    asyncio.run(story())


@pytest.mark.parametrize("failures", [0, 1], ids=["in a batch", "alone"])
def test_a_member_that_is_given_up_runs_until_its_plain_call_has_ended(failures: int) -> None:
    gate = threading.Event()

    async def story() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.Event()

        def handle(bodies: list[str]) -> None:
            loop.call_soon_threadsafe(began.set)
            gate.wait(60)

        handler = batch_handler(handle, 2)
        handlings = [started(handler, id, failures) for id in ("a" if failures else "ab")]
        await began.wait()
        for _ in range(2):  # a worker that stops may do so again
            for handling in handlings:
                handling.lose()
            await turns()
        assert not any(has_ended(handling) for handling in handlings)
        gate.set()
        for handling in handlings:
            assert isinstance(await ended(handling), asyncio.CancelledError)

    try:
        asyncio.run(story())
    finally:
        gate.set()
