"""One request and its answer: ASGI's `receive` and `send`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
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

_STATUS_LINES = {int(s): f"HTTP/1.1 {int(s)} {s.phrase}\r\n".encode() for s in HTTPStatus}

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
"""An ASGI application."""

_log = logger("bide.server")


class Carrier(Protocol):
    """The connection that carries an exchange."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    write_paused: bool
    reads: bool

    def write(self, data: bytes) -> None:
        """Write a part of an answer."""

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""

    def read_more(self) -> None:
        """Continue to read: the application has taken the received part of the body."""

    def finished(self, exchange: "Exchange") -> None:
        """Continue with the next request, or wait for one."""


@dataclass(eq=False, repr=False)
class Exchange:
    """A request of a connection.

    Args:
        connection: the connection of the request.
        scope: ASGI's description of it.
        keep: whether the client may send another one on the connection.
        expects_continue: whether the client waits for `100 Continue` before it sends the body.
    """

    connection: Carrier
    scope: dict[str, Any]
    keep: bool
    """Whether the connection is kept after the answer."""
    expects_continue: bool
    body: bytearray = field(default_factory=bytearray, init=False)
    """The part of the body that has arrived, and that the application has not received."""
    complete: bool = field(default=False, init=False)
    """Whether the whole body has arrived."""
    started: bool = field(default=False, init=False)
    """Whether some of the answer was written."""
    _head: tuple[int, list[tuple[bytes, bytes]]] | None = field(default=None, init=False)
    """Status and header fields of the answer, until they are written."""
    _chunked: bool = field(default=False, init=False)
    """Whether the answer is sent in chunks, since its length is not known at its beginning."""
    _answered: bool = field(default=False, init=False)
    """Whether the whole answer was written."""
    _body_received: bool = field(default=False, init=False)
    """Whether the application has received the whole body."""
    _client: Present = field(default_factory=Present, init=False)
    """Tells the application whether the client is still there."""
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when `receive` has something new to return."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    """The application's task."""

    def start(self, app: App) -> None:
        """Let the application answer."""
        self.scope["extensions"][CLIENT] = self._client
        self._task = self.connection.loop.create_task(self._run(app))

    async def _run(self, app: App) -> None:
        """Run the application; if it does not answer, answer with status 500."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001  (it is logged, and other requests continue)
            path = printable(self.scope["path"], MAX_LOGGED_PATH)
            _log.exception("%s %s failed", self.scope["method"], path)
        if self._answered or self._client.disconnected:
            return
        self.keep = False
        if self.started:
            self.connection.transport.abort()  # shows that the answer is not complete
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
        self._news.set()

    def feed_end(self) -> None:
        """Note the end of the body."""
        self.complete = True
        self._news.set()

    def lose(self) -> None:
        """Note that the client has gone, or that nothing more can be sent.

        The request ends when it would wait, or before its next command that may have a large reply.
        """
        self._client.leave()
        self._news.set()

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call a function once the application's task has ended."""
        if self._task is None or self._task.done():
            callback()
        else:
            self._task.add_done_callback(lambda task: callback())

    # From the application.

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body, or that the client has gone."""
        connection = self.connection
        while not (self._client.disconnected or self._answered):
            if not self._body_received and (self.body or self.complete):
                data = bytes(self.body)
                self.body.clear()
                self._body_received = self.complete
                if not connection.reads:
                    connection.read_more()
                return {"type": "http.request", "body": data, "more_body": not self._body_received}
            if self.expects_continue and not self.complete:
                self.expects_continue = False
                connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Write a part of the answer; the head waits for the first part of the body."""
        if self._client.disconnected or self._answered:
            return
        if message["type"] == "http.response.start":
            self._head = message["status"], list(message.get("headers", ()))
            return
        connection = self.connection
        if connection.write_paused:
            await connection.drained()
            if self._client.disconnected or self._answered:
                return
        data, has_more = message.get("body", b""), message.get("more_body", False)
        pieces = []
        if self._head is not None:
            status, headers = self._head
            pieces.append(self._framed_head(status, headers, None if has_more else len(data)))
            self._head = None
        if self.scope["method"] == "HEAD":  # the answer to HEAD has no body, and so ends here
            data, has_more = b"", False
        elif self._chunked:
            if data:  # an empty chunk would end the answer
                pieces += [b"%x\r\n" % len(data), data, b"\r\n"]
            if not has_more:
                pieces.append(b"0\r\n\r\n")
        else:
            pieces.append(data)
        if len(data) <= LARGE:  # joining more would copy it, and release the interpreter
            pieces = [b"".join(pieces)]
        for piece in filter(None, pieces):
            connection.write(piece)
        if not has_more:
            self._answered = True
            self._news.set()
            connection.finished(self)

    def _framed_head(
        self, status: int, headers: list[tuple[bytes, bytes]], length: int | None
    ) -> bytes:
        """Return the head of the answer, with the fields that tell where the answer ends.

        Args:
            status: the status of the answer.
            headers: the application's header fields, to which fields are added.
            length: the size of the body in bytes; `None`: it is not known.
        """
        self.started = True
        self.expects_continue = False  # after the head of an answer, the client sends no body
        values = dict(headers)
        if values.get(b"connection", b"").lower() == b"close":
            self.keep = False
        elif not (self.keep and self.complete):
            # The rest of an incomplete body would be read as the next request.
            self.keep = False
            headers.append(CLOSE)
        elif self.scope["http_version"] == "1.0":
            headers.append(KEEP)
        has_body = status >= 200 and status not in (204, 304)
        if has_body and b"content-length" not in values:
            if length is not None:
                headers.append((b"content-length", b"%d" % length))
            elif self.scope["http_version"] == "1.1":
                self._chunked = True
                headers.append((b"transfer-encoding", b"chunked"))
            elif self.keep:
                self.keep = False  # the end of the connection ends the answer
        return head(status, headers)


def head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an answer.

    Raises:
        RuntimeError: a header field contains the end of a line.
    """
    text = b""
    for name, value in headers:
        text += b"%b: %b\r\n" % (name, value)
    if text.count(b"\n") != len(headers) or text.count(b"\r") != len(headers):
        raise RuntimeError("a header field contains the end of a line")
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%bdate: %b\r\n%b\r\n" % (line, _date(int(time.time())), text)


_PROBLEM_KINDS = {
    400: "malformed",
    429: "too-many-connections",
    431: "head-too-large",
    503: "overloaded",
}
"""The kind of problem for each status with which the connection itself refuses."""


def refusal_answer(refusal: Refusal) -> bytes:
    """Return the answer to a request that could not be parsed, or a refused connection."""
    status, detail = refusal
    status, body, headers = as_json(Problem(_PROBLEM_KINDS[status], detail))
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    fields += [(b"content-length", b"%d" % len(body)), CLOSE]
    return head(status, fields) + body


@lru_cache(maxsize=1)  # all answers of a second have the same date
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
