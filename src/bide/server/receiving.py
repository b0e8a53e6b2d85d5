"""Receiving a request: no more of it than is allowed, and not for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from bide.server.problem import Problem

__all__ = ["Gone", "Receive", "read_body", "unless_gone"]

Receive = Callable[[], Coroutine[Any, Any, dict[str, Any]]]

T = TypeVar("T")


class Gone(Exception):
    """The client has closed the connection: nobody reads an answer."""


async def read_body(receive: Receive, length: str | None, limit: int, seconds: float) -> bytes:
    """Return the body of a request, which announces its `length`.

    Raises:
        Problem: it is larger than `limit` bytes, or does not arrive within `seconds`.
        Gone: the client left before it was whole.
    """
    if length is not None and length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise _too_large(limit)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(
            "timeout",
            "the body did not arrive in time; send all that content-length announces",
            headers={"connection": "close"},
        ) from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    """Return what tells that a request is larger than so many bytes."""
    return Problem(
        "too-large",
        f"the request takes more than {limit:,} bytes; send it in several",
        field="body",
        headers={"connection": "close"},
    )


async def unless_gone(
    receive: Receive, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[object]]
) -> T:
    """Return what some work brings, and cancel it as soon as the client has gone.

    What it brought in that very moment is handed to `undo`.

    Raises:
        Gone: the client has closed the connection.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_leaves(receive))
    handed_over = False
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise Gone
        handed_over = True
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
        if not handed_over and not working.cancelled() and working.exception() is None:
            await undo(working.result())


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # what comes after a body is of no interest
