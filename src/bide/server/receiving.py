"""Receive request bodies within limits of size and time, and notice clients that leave."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from bide.consuming.graceful_stop import cancel, first_of
from bide.server.problem import Problem

Receive = Callable[[], Coroutine[Any, Any, dict[str, Any]]]

T = TypeVar("T")


class Gone(Exception):
    """The client has closed the connection."""


async def read_body(
    receive: Receive,
    length: str | None,
    limit: int,
    seconds: float,
    grow: Callable[[int, int], None],
) -> bytes:
    """Return the body of a request.

    Args:
        receive: gives the parts of the body.
        length: what the request announces, if anything.
        limit: bytes.
        seconds: that the whole body may take.
        grow: is called with the size before and after each part.

    Raises:
        Problem: it is larger than `limit`, or does not arrive in time.
        Gone: the client closed the connection before the body was whole.
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
                grow(size - len(parts[-1]), size)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(
            "timeout",
            "the body did not arrive in time; send all that content-length announces",
            headers={"connection": "close"},
        ) from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem(
        "too-large",
        f"the request takes more than {limit:,} bytes; send it in several",
        field="body",
        headers={"connection": "close"},
    )


async def unless_gone(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    refusal: Coroutine[Any, Any, None],
    undo: Callable[[T], Awaitable[object]] | None = None,
) -> T:
    """Return the result of some work; cancel it when the client closes the connection.

    Args:
        receive: tells that the client has gone.
        work: what is done.
        refusal: raises when the client may no longer wait.
        undo: is given a result that came at the same time.

    Raises:
        Gone: the client has closed the connection.
        Problem: that of `refusal`.
    """
    working = asyncio.ensure_future(work)
    handed_over = False
    try:
        await first_of(working, _leaves(receive), refusal)
        handed_over = True
        return working.result()
    finally:
        await cancel([working])
        came = not working.cancelled() and working.exception() is None
        if undo is not None and came and not handed_over:
            await undo(working.result())


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # nothing is expected after a body
    raise Gone
