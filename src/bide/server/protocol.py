"""The HTTP of a connection: uvicorn's, with patience for what is slow and no haste for the rest."""

import asyncio
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from bide.server.leaving import CLOSE, LeavingProtocol
from bide.server.operation import EXCHANGE

__all__ = ["KEEP_ALIVE", "Exchange", "Joined", "Protocol"]

KEEP_ALIVE = 75
"""For how many seconds a connection without requests is kept."""


class Joined:
    """A connection's transport on which the head of an answer waits for its body.

    uvicorn writes them one by one, which would be two system calls and two packets for an answer
    of a few bytes. What streams is sent when the loop has run all that is due.

    Args:
        transport: the transport.
        loop: the loop it belongs to.
    """

    __slots__ = ("_head", "_loop", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send what was kept back and this, or keep this back if it is a head."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Send what was kept back, and close the connection."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Exchange:
    """One request and its answer without ASGI's messages, where nothing speaks against it.

    They are looked at from all sides, and took as long as making the answer.

    Args:
        cycle: the request, and what became of it.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        """Return the request's body, if all of it has come; `None`: it has to be received."""
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        data, cycle.body = bytes(cycle.body), bytearray()
        return data

    def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], data: bytes) -> bool:
        """Send an answer in one piece; return False if that has to be done by ASGI's messages.

        Args:
            status: its status.
            headers: its headers, the length of `data` among them if there are any.
            data: its body.
        """
        cycle = self._cycle
        fields = (*cycle.default_headers, *headers)
        told = cycle.response_started or cycle.disconnected or cycle.flow.write_paused
        if told or not cycle.keep_alive or CLOSE in fields:
            return False
        lines = [b"%b: %b\r\n" % field for field in fields]
        head = STATUS_LINE[status] + b"".join(lines)
        if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
            raise RuntimeError("a header has the end of a line in it")
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        body = b"" if cycle.scope["method"] == "HEAD" else data
        cycle.transport.write(b"%b\r\n%b" % (head, body))
        cycle.message_event.set()
        cycle.on_response()
        return True


class Protocol(LeavingProtocol):
    """Closes connections on which the head of a request does not arrive in time."""

    patience = 30.0
    """For how many seconds the head of a request is waited for."""
    _head_begun = True
    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a first request."""
        super().connection_made(Joined(transport, self.loop))
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take in what came, and wait for the rest of a head."""
        super().data_received(data)
        if self._head_begun:
            self._expect()

    def on_message_begin(self) -> None:
        """Begin with a head."""
        self._head_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Wait no longer; who reads the body has a patience of their own."""
        self._head_begun = False
        if self._timer is not None:
            self._calm()
        super().on_headers_complete()
        self.scope["extensions"] = {EXCHANGE: Exchange(self.cycle)}  # type: ignore[dict-item]

    def on_response_complete(self) -> None:
        """Go on with the next request, or begin to wait for one.

        uvicorn sets a timer after each answer and takes it back at the next request. Here it runs
        on, and looks when it is over how long it really was.
        """
        if self._ends or self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(KEEP_ALIVE, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._calm()
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self.transport.close)

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        self._idle = None
        if self._timer is not None or not self.cycle.response_complete:
            return  # a request is on its way; its answer begins anew to wait
        left = self._idle_since + KEEP_ALIVE - self.loop.time()
        if left <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._idle = self.loop.call_later(left, self._close_if_idle)
