"""HTTP/1.1 on one connection: its requests are answered one after the other.

All that a client can make the server keep is limited: the head (`MAX_HEAD`, `MAX_FIELDS`),
pipelined requests and unread body (one slice), unread answers (the transport's buffer; a client
that reads nothing for `STALLED` seconds is cut off), and the time for a head and between two
requests.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import cast

from bide.model.limits import KEEP_ALIVE, MAX_DISCARDED
from bide.server.http.connection_table import ConnectionTable, Peer
from bide.server.http.exchange import App, Exchange, refusal_answer
from bide.server.http.output import ResponseOutput
from bide.server.http.request_parser import SLICE, Parsed, Refusal, RequestHead, RequestParser, Sign
from bide.server.logs import log_refused

LINGER_SECONDS = 1.0
"""Seconds for which the rest of a refused request is discarded, so that the client can read the
refusal."""

CROWDED: Refusal = (
    503,
    "unfinished heads of requests take too much memory; send a smaller one, or try later",
)

REST_SECONDS = 10.0
"""Seconds that a slow client has to read the rest of its last answer, which TLS keeps."""


class Connection(ResponseOutput):
    """One connection of a client.

    Args:
        table: the open connections, with their limits and timeouts.
        app: answers the requests.
        handshake: the TLS handshake, which the connection replaces in the table.
    """

    def __init__(self, table: ConnectionTable, app: App, handshake: Peer | None = None) -> None:
        super().__init__(table)
        self._app = app
        self._handshake = handshake
        self._queue: deque[Exchange] = deque()
        """Pipelined requests, which wait until the current one is answered."""
        self._current: Exchange | None = None
        """The request that is being answered."""
        self._incoming: Exchange | None = None
        """The request whose body is not complete."""
        self._unparsed = memoryview(b"")
        """Received data that is not parsed yet."""
        self.discarded = 0
        """Bytes that were received after parsing ended."""
        self.reads = True
        """Whether the transport reads from the socket."""
        self._closes_soon = False
        """Whether the connection is closed after the requests that have come."""
        self._parses_no_more = False
        """Whether what is received from now on is discarded."""
        self.closes_when_sent = False
        """Whether the connection is closed as soon as the client has read all answers."""
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection, unless a request begins earlier."""

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.loop = asyncio.get_running_loop()
        sock = transport.get_extra_info("socket")
        client_name = None
        with suppress(OSError):  # the client has gone already
            client_name = sock.getpeername()
        server_name = sock.getsockname()
        self._tls = self.transport.get_extra_info("sslcontext") is not None
        # The name of a TCP socket is a tuple that begins with host and port; that of a Unix socket
        # is its path.
        client = client_name[:2] if isinstance(client_name, tuple) else None
        self.address = client[0] if client else ""
        server = server_name[:2] if isinstance(server_name, tuple) else (str(server_name), None)
        self._parser = RequestParser(
            {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.4"},
                "scheme": "https" if self._tls else "http",
                "root_path": "",
                "client": client,
                "server": server,
            },
        )
        if self._handshake is not None:
            self.table.leave(self._handshake)
        if (refusal := self.table.enter(self)) is not None:
            self._refuse_connection(refusal)
            return
        self._close_after(self.table.quiet if self.table.stopping else self.table.patience)
        self._closes_soon = self.table.stopping

    def _refuse_connection(self, refusal: Refusal) -> None:
        """Answer with a refusal and close, after the client had time to read it if there is room.

        There is none if the process stops, or if many refused clients read already.
        """
        self._parses_no_more = True
        self._send_refusal(refusal)
        if self.table.lets_linger(self):
            self._linger()
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse received data."""
        if self._parses_no_more:
            self.discarded += len(data)
            if self.discarded > MAX_DISCARDED:
                self.transport.abort()
            return
        was_in_head = self._parser.in_head
        self._unparsed = memoryview(b"".join((self._unparsed, data)))
        self._parse()
        head_began = self._parser.in_head and not was_in_head
        if head_began and self._current is None and not self._parses_no_more:
            self._close_after(self.table.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way for this client; until that has ended, the connection counts."""
        self._parses_no_more = True
        self._stop_timer()
        super().resume_writing()
        self._queue.clear()
        if self._current is None:
            self.table.leave(self)
        else:
            self._current.lose()
            self._current.when_ended(partial(self.table.leave, self))

    def resume_writing(self) -> None:
        """Continue with the waiting answer, or the next request; or close the connection."""
        super().resume_writing()
        if self.closes_when_sent:
            # The transport has sent all; TLS may still keep the end of it.
            self.loop.call_later(REST_SECONDS if self._tls else 0, self.transport.close)
        elif self._current is None:
            self._start_next()

    # Reading.

    def _parse(self) -> None:
        """Parse slice by slice while there is room for their requests and bodies."""
        parser = self._parser
        while self._unparsed and not self._parses_no_more and not self._is_full:
            data, self._unparsed = self._unparsed[:SLICE], self._unparsed[SLICE:]
            self._take(parser.feed(data))
            has_room = self.table.has_room_for_head(self, parser.head_size)
            if parser.refusal is not None:
                self._refuse(parser.refusal)
            elif not has_room:
                self._refuse(CROWDED)
        should_read = not (self._unparsed or self._is_full)
        if should_read != self.reads and not self.transport.is_closing():
            self.reads = should_read
            if should_read:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _take(self, pieces: Iterable[Parsed]) -> None:
        """Take pieces of requests from the parser."""
        for piece in pieces:
            if isinstance(piece, RequestHead):
                self._incoming = self._begin(piece)
            elif piece is Sign.TUNNEL:  # the data after a CONNECT is not HTTP
                self._parses_no_more = self._closes_soon = True
                if self._current is not None:
                    self._current.keep = False
            else:
                assert self._incoming is not None  # a head comes before them
                if isinstance(piece, bytes):
                    self._incoming.feed(piece)
                else:
                    self._incoming.feed_end()
                    self._incoming = None

    @property
    def _is_full(self) -> bool:
        """Whether requests, or a large part of a body, wait for the application."""
        current = self._current
        return bool(self._queue) or (current is not None and len(current.body) >= SLICE)

    def _resume_reading(self) -> None:
        """Read from the socket again, if the transport does not."""
        if not self.reads:
            self.reads = True
            self.transport.resume_reading()

    def read_more(self) -> None:
        """Continue to read: the application has taken the received part of the body."""
        if not self._parses_no_more:
            self._parse()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a request that cannot be parsed, and close the connection.

        If earlier requests are not answered yet, only the first of them is, and then the connection
        is closed: a refusal now would be taken for its answer.
        """
        self._parses_no_more = True
        self._unparsed = memoryview(b"")
        current = self._current
        if current is None:
            self._send_refusal(refusal)
            self._linger()
        elif current is self._incoming:
            # Its body is malformed: the application cannot continue.
            if not current.started:
                self._send_refusal(refusal)
            current.lose()
            self._linger()
        else:
            current.keep = False
            self._queue.clear()

    def _send_refusal(self, refusal: Refusal) -> None:
        log_refused(self.address, *refusal)
        self.transport.write(refusal_answer(refusal))

    # Requests, one after the other.

    def _begin(self, head: RequestHead) -> Exchange:
        """Start a request that has arrived, or queue it behind the one that is being answered."""
        self._stop_timer()  # it has limited how long the request may be on its way
        exchange = Exchange(self, head.scope, head.keep, head.expects)
        # If writing is paused, the client does not read earlier answers.
        if self._current is None and not self.write_paused:
            self._start(exchange)
        else:
            self._queue.append(exchange)
        return exchange

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        if self._closes_soon and not (self._queue or self._unparsed):
            exchange.keep = False  # it is the last one
        exchange.start(self._app)

    def _start_next(self) -> None:
        """Start the next queued request, and parse those that it makes room for."""
        if self._queue and not self.write_paused and not self.transport.is_closing():
            self._start(self._queue.popleft())
            self._parse()

    def finished(self, exchange: Exchange) -> None:
        """Continue with the next request, or wait for one."""
        self._current = None
        if not exchange.keep or not exchange.complete:
            self._parses_no_more = True
            self._queue.clear()
            if exchange.complete:
                self._close()
            else:
                self._linger()
        elif self._queue:
            self._start_next()
        else:
            if not self.reads:  # data waits that had no room
                self._parse()
            if self._current is None and not self._parses_no_more:
                self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._closes_soon:
            self._close_after(self.table.quiet)
        elif self._parser.in_head:  # a request has begun
            self._close_after(self.table.patience)
        else:
            self._close_after(KEEP_ALIVE)

    # The end.

    def shut_down(self) -> None:
        """Answer requests that have come or may be on their way, and close the connection."""
        self._closes_soon = True
        if self._current is None:
            self._close_after(self.table.quiet)
        elif not (self._current.started or self._queue or self._unparsed):
            self._current.keep = False  # its answer has `connection: close`

    def close_if_idle(self) -> bool:
        """Close the connection if no request is under way; tell whether it was closed."""
        if self._current is None and not (self.closes_when_sent or self.transport.is_closing()):
            unsent = self.transport.get_write_buffer_size()
            if self._tls and not unsent:
                # With the goodbye of TLS, the client would decide when the descriptor is free.
                self.transport.abort()
            else:
                self._close()
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
        self._parses_no_more = True
        self._resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Close the connection when the client has read the answer, or is cut off as stalled.

        A closed transport would wait for the client forever, and with TLS not long enough.
        """
        self._parses_no_more = True
        if self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self.closes_when_sent = True
            self._resume_reading()  # to notice that the client has gone
            self.transport.set_write_buffer_limits(0)  # calls `resume_writing` when all is sent
        else:
            self.transport.close()

    def _close_after(self, seconds: float) -> None:
        """Close the connection after a time, unless a request begins earlier."""
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._close_unless_request_has_come)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_unless_request_has_come(self) -> None:
        """Close the connection when its time is over.

        While the server stops, the time is short: then a request may be in the socket unread.
        """
        unsent = self.transport.get_write_buffer_size()
        may_get_request = self._closes_soon and not (unsent or self.transport.is_closing())
        if may_get_request and self._request_has_come():
            self._close_after(self.table.quiet)  # the event loop reads it next
        else:
            self._close()

    def _request_has_come(self) -> bool:
        """Tell whether a request waits in the socket; if not, send the end of the connection.

        The end is sent here, so that the client sends no other request on it: the event loop may do
        much else before it closes the connection.
        """
        try:
            # asyncio's own socket object cannot receive: a duplicate of its descriptor can.
            descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=descriptor) as duplicate:
                try:
                    return bool(duplicate.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
                except BlockingIOError:  # nothing has come
                    if not self._tls:  # TLS has an end of its own
                        duplicate.shutdown(socket.SHUT_WR)
        except OSError:
            return False  # the client has closed it, or no descriptor is free
        return False
