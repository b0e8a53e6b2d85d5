"""One request and its answer: ASGI's `receive` and `send`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Protocol

from bide.logs import logger
from bide.model.limits import MAX_LOGGED_PATH
from bide.observing.logs import printable
from bide.server.http.request_parser import Refusal
from bide.server.limits.gate import CLIENT
from bide.server.limits.reply_budget import Present
from bide.server.limits.request_bodies import LARGE
from bide.server.problem import Problem, as_json

CLOSE = (b"connection", b"close")

KEEP = (b"connection", b"keep-alive")

_LINES = {int(s): f"HTTP/1.1 {int(s)} {s.phrase}\r\n".encode() for s in HTTPStatus}

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
"""An ASGI application."""

_log = logger("bide.server")


class Carrier(Protocol):
    """The connection that carries an exchange."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    write_paused: bool

    def write(self, data: bytes) -> None:
        """Write a part of an answer."""

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""

    def took_body(self) -> None:
        """Continue to read: the application has taken the received part of the body."""

    def ended(self, exchange: "Exchange", task: asyncio.Task[None]) -> None:
        """Note that the task of a request has ended."""

    def finished(self, exchange: "Exchange") -> None:
        """Continue with the next request, or wait for one."""


class Exchange:
    """A request of a connection.

    Args:
        connection: the connection of the request.
        scope: ASGI's description of it.
        keep: whether the client may send another one on the connection.
        expects: whether the client waits for `100 Continue` before it sends the body.
    """

    def __init__(
        self, connection: Carrier, scope: dict[str, Any], *, keep: bool, expects: bool
    ) -> None:
        self._connection = connection
        self._scope = scope
        self._expects = expects
        self._is_head = scope["method"] == "HEAD"
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._chunked = self._done = self._read = False
        self._client = Present()
        scope["extensions"][CLIENT] = self._client
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.body = bytearray()
        """The part of the body that has arrived, and that the application has not received."""
        self.complete = False
        """Whether the whole body has arrived."""
        self.keep = keep
        """Whether the connection is kept after the answer."""
        self.started = False
        """Whether some of the answer was written."""

    def start(self, app: App) -> None:
        """Let the application answer."""
        self._task = self._connection.loop.create_task(self._run(app))
        self._task.add_done_callback(partial(self._connection.ended, self))

    async def _run(self, app: App) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:  # noqa: BLE001  (it is logged, and other requests continue)
            path = printable(self._scope["path"], MAX_LOGGED_PATH)
            _log.exception("%s %s failed", self._scope["method"], path)
        if self._done or self._client.disconnected:
            return
        self.keep = False
        if self.started:
            self._connection.transport.abort()  # shows that the answer is not complete
        else:
            await self.send({"type": "http.response.start", "status": 500})
            await self.send({"type": "http.response.body"})

    def cancel(self) -> None:
        """End the application's task."""
        if self._task is not None:
            self._task.cancel()

    # From the connection.

    def feed(self, data: bytes) -> None:
        """Add a part of the body."""
        self.body += data
        self._wake()

    def feed_end(self) -> None:
        """Note the end of the body."""
        self.complete = True
        self._wake()

    def lose(self) -> None:
        """Note that the client has gone, or that nothing more can be sent.

        The request ends when it would wait, or before its next command that may have a large reply.
        """
        self._client.leave()
        self._wake()

    @property
    def under_way(self) -> bool:
        """Whether the application's task goes on."""
        return self._task is not None and not self._task.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # From the application.

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body, or that the client has gone."""
        connection = self._connection
        while not (self._client.disconnected or self._done):
            if not self._read and (self.body or self.complete):
                data = bytes(self.body)
                self.body.clear()
                self._read = self.complete
                connection.took_body()
                return {"type": "http.request", "body": data, "more_body": not self._read}
            if self._expects and not self.complete:
                self._expects = False
                connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waiter = connection.loop.create_future()
            await self._waiter
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Write a part of the answer; the head waits for the first part of the body."""
        if self._client.disconnected or self._done:
            return
        if message["type"] == "http.response.start":
            self._head = message["status"], list(message.get("headers", ()))
            return
        connection = self._connection
        if connection.write_paused:
            await connection.drained()
            if self._client.disconnected or self._done:
                return
        data, more = message.get("body", b""), message.get("more_body", False)
        pieces = []
        if self._head is not None:
            pieces.append(self._begin(*self._head, None if more else len(data)))
            self._head = None
        if self._is_head:
            data, more = b"", False
        elif self._chunked:
            if data:
                pieces += [b"%x\r\n" % len(data), data, b"\r\n"]
            if not more:
                pieces.append(b"0\r\n\r\n")
        else:
            pieces.append(data)
        if len(data) <= LARGE:  # joining more would copy it, and release the interpreter
            pieces = [b"".join(pieces)]
        for piece in filter(None, pieces):
            connection.write(piece)
        if not more:
            self._done = True
            self._wake()
            connection.finished(self)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> bytes:
        """Return the head, with the fields that frame the answer."""
        self.started = True
        self._expects = False
        names = dict(headers)
        if names.get(b"connection", b"").lower() == b"close":
            self.keep = False
        elif not (self.keep and self.complete):
            self.keep = False
            headers.append(CLOSE)
        elif self._scope["http_version"] == "1.0":
            headers.append(KEEP)
        if b"content-length" not in names and status >= 200 and status not in (204, 304):
            if length is not None:
                headers.append((b"content-length", b"%d" % length))
            elif self._scope["http_version"] == "1.1":
                self._chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
            elif self.keep:
                self.keep = False  # the end of the connection ends the answer
        return head(status, headers)


def head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an answer.

    Raises:
        RuntimeError: a header field contains the end of a line.
    """
    lines = [b"%b: %b\r\n" % field for field in headers]
    text = b"".join(lines)
    if text.count(b"\n") != len(lines) or text.count(b"\r") != len(lines):
        raise RuntimeError("a header field contains the end of a line")
    line = _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%bdate: %b\r\n%b\r\n" % (line, _date(int(time.time())), text)


_KINDS = {400: "malformed", 429: "too-many-connections", 431: "head-too-large", 503: "overloaded"}


def refusal_answer(refusal: Refusal) -> bytes:
    """Return the answer to a request that could not be parsed, or a refused connection."""
    status, detail = refusal
    status, data, headers = as_json(Problem(_KINDS[status], detail))
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    fields += [(b"content-length", b"%d" % len(data)), CLOSE]
    return head(status, fields) + data


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
