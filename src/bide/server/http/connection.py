"""HTTP/1.1 on one connection: llhttp parses, this module limits, an ASGI application answers.

Requests of a connection are answered one after the other. All that a client can make the server
keep is limited: the head (`MAX_HEAD`, `MAX_FIELDS`), pipelined requests and unread body (one
slice), unread answers (the transport's buffer; a client that reads nothing for `STALLED` seconds is
cut off), and the time for a head and between two requests.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import httptools

from bide.logs import logger
from bide.model.limits import KEEP_ALIVE, MAX_DISCARDED, MAX_HEAD
from bide.server.http.exchange import TOO_LARGE, Exchange, Refusal, RequestHead
from bide.server.http.output import ResponseOutput
from bide.server.logs import log_refused

if TYPE_CHECKING:
    from bide.server.http.http_server import Handshake, HttpServer

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

LINGER = 1.0
"""Seconds for which the rest of a refused request is discarded, so that the client can read the
refusal."""

CROWDED: Refusal = (
    503,
    "unfinished heads of requests take too much memory; send a smaller one, or try later",
)

REST = 10.0
"""Seconds that a slow client has to read the rest of its last answer, which TLS keeps."""

SLICE = 16 * 1024
"""Bytes that are parsed at a time; parsing stops while a request waits for its turn."""

_log = logger("bide.server")


class Connection(ResponseOutput):
    """One connection of a client.

    Args:
        server: the server of the connection, with application, limits and timeouts.
        handshake: the TLS handshake, which the connection replaces in the server's counts.
    """

    def __init__(self, server: "HttpServer", handshake: "Handshake | None" = None) -> None:
        super().__init__()
        self.server = server
        self._handshake = handshake
        self.address = ""
        """The client's address; "" on a Unix socket."""
        self._queue: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._incoming: Exchange | None = None
        self._unparsed = memoryview(b"")
        self._discarded = 0
        self._reading = True
        self._refusal: Refusal | None = None
        self._last = self._ended = self._leaving = self._lost = False
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection, unless a request begins earlier."""
        self._begin_head()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        end, peer = transport.get_extra_info("socket"), None
        with suppress(OSError):  # the client has gone already
            peer = end.getpeername()
        here = end.getsockname()
        self._tls = self.transport.get_extra_info("sslcontext") is not None
        self._client = peer[:2] if isinstance(peer, tuple) else None
        self._server_name = here[:2] if isinstance(here, tuple) else (str(here), None)
        self.address = self._client[0] if self._client else ""
        if self._handshake is not None:
            self.server.leave(self._handshake)
        if (refusal := self.server.enter(self)) is not None:
            self._ended = True
            self._send_refusal(*refusal)
            if self.server.has_time_for(self):
                self._linger()
            else:
                self.transport.close()
            return
        self._wait(self.server.quiet if self.server.stopping else self.server.patience)
        self._last = self.server.stopping

    def data_received(self, data: bytes) -> None:
        """Parse received data."""
        if self._ended:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED:
                self.transport.abort()
            return
        self._unparsed = memoryview(b"".join((self._unparsed, data)))
        self._parse()
        if self._in_head and self._timer is None and not (self._current or self._ended):
            self._wait(self.server.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way for this client; until that has ended, the connection counts."""
        self._ended = self._lost = True
        self._stop_timer()
        super().resume_writing()
        self._queue.clear()
        if self._current is not None:
            self._current.lose()
        if self._current is None or not self._current.under_way:
            self.server.leave(self)

    def resume_writing(self) -> None:
        """Continue with the waiting answer, or the next request; or close the connection."""
        super().resume_writing()
        if self._leaving:
            self.loop.call_later(REST if self._tls else 0, self.transport.close)
        elif self._current is None:
            self._next()

    # The parser's side: llhttp calls these, also several times for one piece of data.

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._begin_head()
        self._stop_timer()

    def on_url(self, url: bytes) -> None:
        """Keep the request's target, which may come in pieces."""
        self._refusal = self._refusal or self._head.add_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field."""
        add = self._head.add_field if self._in_head else self._head.add_trailer
        self._refusal = self._refusal or add(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or queue it."""
        self._in_head = False
        parser, head, version = self._parser, self._head, self._parser.get_http_version()
        self._refusal = self._refusal or head.check(version)
        if self._refusal is not None or self._asks_to_upgrade:
            return
        scope = head.scope(parser.get_method().decode(), version, self._client, self._server_name)
        if self._tls:
            scope["scheme"] = "https"
        keep, expects = parser.should_keep_alive(), head.expects_continue(version)
        exchange = self._incoming = Exchange(self, scope, keep=keep, expects=expects)
        if self._current is None and not self.write_paused:
            self._start(exchange)
        else:
            self._queue.append(exchange)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the request."""
        self._fed = 0
        if self._refusal is None and self._incoming is not None:
            self._incoming.feed(body)

    def on_message_complete(self) -> None:
        """Pass the end of the body to the request."""
        self._fed = 0
        if self._refusal is None and self._incoming is not None:
            self._incoming.feed_end()
            self._incoming = None

    def _begin_head(self) -> None:
        self._in_head = True
        self._head = RequestHead()
        self._fed = 0
        """Bytes since the last part of a body, or the last request, which the parser keeps."""

    # Reading.

    def _parse(self) -> None:
        """Parse slice by slice while there is room for their requests and bodies."""
        while self._unparsed and not self._ended and not self._is_full:
            data, self._unparsed = self._unparsed[:SLICE], self._unparsed[SLICE:]
            self._feed(data)
        self._set_reading()

    def _feed(self, data: memoryview) -> None:
        remaining: bytes | memoryview = data
        try:
            while remaining:
                remaining = self._fed_to_parser(remaining)
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = 400, f"this is not HTTP/1.1: {error}"
        # This counts the head, the trailers, and the framing of chunks.
        self._fed += len(data)
        if self._fed > MAX_HEAD + SLICE and self._refusal is None:
            self._refusal = TOO_LARGE
        if not self.server.has_room_for_head(self, self._fed if self._in_head else 0):
            self._refusal = self._refusal or CROWDED
        if self._refusal is not None:
            self._refuse()

    def _fed_to_parser(self, data: bytes | memoryview) -> bytes:
        """Parse data; return data to parse next: only for a request to upgrade.

        The server has no other protocol, so it ignores the upgrade. The parser treats the body of
        such a request as the other protocol, so it gets the request again without the upgrade.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._refusal is None and self._asks_to_upgrade:
                parser, self._parser = self._parser, httptools.HttpRequestParser(self)
                head = self._head.without_upgrade(parser.get_method(), parser.get_http_version())
                return head + data[upgrade.args[0] :]
            self._ended = self._last = True  # the data after a CONNECT is not HTTP
            if self._current is not None:
                self._current.keep = False
        return b""

    @property
    def _asks_to_upgrade(self) -> bool:
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    @property
    def _is_full(self) -> bool:
        """Whether requests, or a large part of a body, wait for the application."""
        current = self._current
        return bool(self._queue) or (current is not None and len(current.body) >= SLICE)

    def _set_reading(self) -> None:
        reading = not (self._unparsed or self._is_full)
        if reading != self._reading and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    def took_body(self) -> None:
        """Continue to read: the application has taken the received part of the body."""
        if not self._reading and not self._ended:
            self._parse()

    def _refuse(self) -> None:
        """Answer a request that cannot be parsed, and close the connection."""
        assert self._refusal is not None
        self._ended = True
        self._unparsed = memoryview(b"")
        current = self._current
        if current is None:
            self._send_refusal(*self._refusal)
            self._linger()
        elif current is self._incoming:  # its body is malformed: the application cannot continue
            if not current.started:
                self._send_refusal(*self._refusal)
            current.lose()
            self._linger()
        else:
            current.keep = False
            self._queue.clear()

    def _send_refusal(self, status: int, detail: str) -> None:
        log_refused(self.address, status, detail)
        self.transport.write(self.server.refusal(status, detail))

    # Requests, one after the other.

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self._stop_timer()
        if self._last and not (self._queue or self._unparsed):
            exchange.keep = False
        exchange.start(self.server.app)

    def _next(self) -> None:
        if self._queue and not self.write_paused and not self.transport.is_closing():
            self._start(self._queue.popleft())
            self._parse()

    def ended(self, exchange: Exchange) -> None:
        """Note that the task of a request has ended."""
        if self._lost and exchange is self._current:
            self.server.leave(self)

    def finished(self, exchange: Exchange) -> None:
        """Continue with the next request, or wait for one."""
        self._current = None
        if not exchange.keep or not exchange.complete:
            self._ended = True
            self._queue.clear()
            if exchange.complete:
                self._close()
            else:
                self._linger()
            return
        if self._queue:
            self._next()
        else:
            self._parse()
            if self._current is None and not self._ended:
                keep = self.server.patience if self._in_head else KEEP_ALIVE
                self._wait(self.server.quiet if self._last else keep)

    # The end.

    def shut_down(self) -> None:
        """Answer requests that have come or may be on their way, and close the connection."""
        self._last = True
        if self._current is None:
            self._wait(self.server.quiet)
        elif not (self._current.started or self._queue or self._unparsed):
            self._current.keep = False  # its answer has `connection: close`

    def close_if_idle(self) -> bool:
        """Close the connection if no request is under way; tell whether it was closed."""
        if self._current is None and not (self._leaving or self.transport.is_closing()):
            unsent = self.transport.get_write_buffer_size()
            # With the goodbye of TLS, the client decides when the descriptor is free.
            (self.transport.abort if self._tls and not unsent else self._close)()
            return True
        return False

    def break_off(self) -> None:
        """End what is under way without an answer."""
        if self._current is not None:
            self._current.cancel()
        self.transport.abort()

    def _linger(self) -> None:
        """Let the client read the answer: closing with unread data would discard the answer."""
        if self.transport.is_closing():
            return
        self._ended = True
        self._resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self._close)

    def _close(self) -> None:
        """Close the connection when the client has read the answer, or is cut off as stalled.

        A closed transport would wait for the client forever, and with TLS not long enough.
        """
        self._ended = True
        if self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self._leaving = True
            self._resume_reading()  # to notice that the client has gone
            self.transport.set_write_buffer_limits(0)  # calls `resume_writing` when all is sent
        else:
            self.transport.close()

    def _wait(self, seconds: float) -> None:
        """Close the connection after a time, unless a request begins earlier."""
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._time_is_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        waits = self._last and not (unsent or self.transport.is_closing())
        if waits and self._request_has_come():
            self._wait(self.server.quiet)  # the event loop reads it next
        else:
            self._close()

    def _request_has_come(self) -> bool:
        """Tell whether a request waits in the socket; if not, send the end of the connection.

        The event loop may do much else before it closes the connection.
        """
        try:
            descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=descriptor) as same:
                try:
                    return bool(same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
                except BlockingIOError:
                    if not self._tls:  # TLS has an end of its own
                        same.shutdown(socket.SHUT_WR)
        except OSError:
            return False  # the client has closed it, or no descriptor is free
        return False
