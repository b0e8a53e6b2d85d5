"""Bodies of requests: limits of their size, time, memory and structure, and their turns.

A byte of a request can take sixty bytes of memory: `{}` may be a message, `1,` an id. So the
objects of a large request are counted before it is decoded.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bide.model import limits
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_BUFFERED
from bide.server.problem import Problem
from bide.tasks import cancel, first_of

LARGE = 64 * 1024
"""Bytes from which on decoding a body blocks the event loop for milliseconds."""

SLICE_SECONDS = 0.002
"""Seconds after which a loop over a large request lets other requests go on."""

T = TypeVar("T")

Pause = Callable[..., Awaitable[None]]
"""A function that loops over large requests await, so that other requests go on. Its argument is
how many bytes the next step decodes at once, 0 unless it is given."""


class LargeBodies:
    """Limits the memory of large bodies, and lets other requests go on between two of them.

    A body is decoded in one step, which holds the interpreter, so a thread would not help. Large
    bodies take turns, one at a time in the order of arrival, and after each the event loop is free
    for other requests for as long as that one took.

    Args:
        max_request: how many bytes a request may take.
    """

    def __init__(self, max_request: int) -> None:
        self.most = max(MAX_BUFFERED, 2 * max_request)
        self._turn = asyncio.Lock()
        self.buffered = 0
        """The bytes of requests under way, without the first `LARGE` bytes of each."""

    def grow(self, before: int, after: int) -> None:
        """Count the received bytes of a body; call `grow(size, 0)` at the end of its request.

        Raises:
            Problem: all large bodies together would take too much memory.
        """
        added = max(after - LARGE, 0) - max(before - LARGE, 0)
        if added > 0 and self.buffered + added > self.most:
            raise Problem(
                "overloaded",
                f"large requests under way take {self.buffered >> 20:,} MiB already; try again in "
                "a second, or send less at a time",
                headers={"connection": "close"},
            )
        self.buffered += added

    async def turn(self, size: int) -> None:
        """Wait until a body of this size may be decoded; decode it before the next `await`."""
        if size <= LARGE:
            return
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        # `call_soon` runs after the decoding, which does not await: so the difference is its time.
        loop.call_soon(lambda: loop.call_later(loop.time() - began, self._turn.release))

    def pauses(self) -> Pause:
        """Return a function for a loop over a large request: it yields every `SLICE_SECONDS`.

        Only one loop over a large request runs at a time.
        """
        since = time.monotonic()

        async def pause(size: int = 0) -> None:
            nonlocal since  # when this loop got the interpreter, in seconds of the monotonic clock
            if size > LARGE:
                await self.turn(size)
                since = time.monotonic()
            elif time.monotonic() - since >= SLICE_SECONDS:
                await asyncio.sleep(0)
                await self._turn.acquire()
                asyncio.get_running_loop().call_soon(self._turn.release)
                since = time.monotonic()

        return pause


UNCHECKED_BYTES = 1024 * 1024
"""Bytes up to which the structure of a request is not checked."""

ESCAPED_BYTES = 6
"""Bytes of JSON text that a byte of a body may take, as an escaped character."""

_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},:"))


def check_json(data: bytes) -> None:
    """Check a request in JSON that holds no bodies of messages.

    Raises:
        Problem: it is too large, or has too many objects or values.
    """
    if len(data) <= UNCHECKED_BYTES:
        return
    if len(data) > limits.MAX_JSON:
        raise Problem(
            "too-large",
            f"the request takes {len(data):,} bytes, and {limits.MAX_JSON:,} is the most in JSON, "
            "unless it puts or edits messages; send it in several, or commands in msgpack",
            field="body",
        )
    check_count("objects", data.count(b"{"), limits.MAX_OBJECTS)
    check_count("values", data.count(b","), limits.MAX_VALUES)


def check_body(text: bytes, most: int, beside: int = 0) -> None:
    """Check the minimum size of a body before its text is decoded.

    Each structural character takes a byte of the body, while escaped characters and spaces take
    more in the text than in the body.

    Args:
        text: the JSON text of a message or its body.
        most: bytes that a body may take.
        beside: bytes that the rest of the message may take.

    Raises:
        InvalidArgument: it is larger.
    """
    largest_message = most + beside
    size = len(text)
    if size <= largest_message:
        return
    if size <= ESCAPED_BYTES * largest_message:  # it may be small without escapes and spaces
        size = len(text.translate(None, _NOT_STRUCTURE))
    if size > largest_message:
        raise InvalidArgument(
            f"body takes {size:,} bytes, the limit is {most:,}; store it elsewhere and put a "
            "reference"
        )


def check_fields(count: int) -> None:
    """Check how many header fields and failures the messages of a request have together.

    Raises:
        Problem: there are too many.
    """
    check_count("header fields and failures", count, limits.MAX_FIELDS_TOTAL)


def check_count(noun: str, count: int, most: int) -> None:
    """Check how many of something a request holds.

    Args:
        noun: what is counted, in the plural, for the error text.
        count: how many there are.
        most: how many there may be.

    Raises:
        Problem: there are too many.
    """
    if count > most:
        raise Problem(
            "too-large",
            f"the request holds more than {most:,} {noun}; send it in several",
            field="body",
        )


Receive = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


class ClientGone(Exception):
    """The client has closed the connection."""


@dataclass(eq=False, repr=False)
class RequestBody:
    """The body of one request; its memory is counted until `free`.

    Args:
        receive: returns the parts of the body, and that the client has gone.
        bodies: limits the memory of all bodies.
    """

    receive: Receive
    bodies: LargeBodies
    received: int = field(default=0, init=False)
    """How many bytes have come."""

    async def read(self, length: bytes, most: int, seconds: float) -> bytes:
        """Return the body.

        Args:
            length: the header `content-length`; b"0" without it.
            most: the maximum size in bytes.
            seconds: how long the whole body may take.

        Raises:
            Problem: it is larger than `most`, or does not arrive in time.
            ClientGone: the client closed the connection before the end of the body.
        """
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        has_more = True
        try:
            async with asyncio.timeout(seconds):
                while has_more:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    parts.append(part)
                    size = self.received + len(part)
                    if size > most:
                        raise _too_large(most)
                    if size > LARGE:
                        self.bodies.grow(self.received, size)
                    self.received = size
                    has_more = message.get("more_body", False)
        except TimeoutError:
            raise Problem(
                "timeout",
                "the body did not arrive in time; send as many bytes as content-length says",
                headers={"connection": "close"},
            ) from None
        return b"".join(parts)

    def free(self) -> None:
        """Count the memory of the body no longer."""
        if self.received > LARGE:
            self.bodies.grow(self.received, 0)


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
    last_check: Callable[[], Awaitable[object]] | None = None,
    undo: Callable[[T], Awaitable[object]] | None = None,
) -> T:
    """Return the result of some work; cancel it when the client closes the connection.

    Args:
        receive: reports that the client has gone.
        work: the work.
        refusal: raises when the client may no longer wait, and never returns.
        last_check: raises after the work if the client may not get its result; `None`: it may.
        undo: called with a result that the client does not get; `None`: nothing is to be undone.

    Raises:
        ClientGone: the client has closed the connection.
        Problem: that of `refusal` or `last_check`.
    """

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # nothing is expected after a body
        raise ClientGone

    working = asyncio.ensure_future(work)
    handed_over = False
    try:
        await first_of(working, leaves(), refusal)
        if last_check is not None:
            await last_check()
        handed_over = True
        return working.result()
    finally:
        await cancel([working])  # it may have its result nevertheless
        has_result = not working.cancelled() and working.exception() is None
        if undo is not None and has_result and not handed_over:
            await undo(working.result())
