"""Send POST requests over kept connections, with a limit on everything that a receiver controls.

A receiver may be hostile: it may answer without end, in pieces of one byte, or not at all. So the
client bounds the size of an answer's head, the number of interim answers, the part of the body
that is read, and the number of open connections. The caller bounds the time.
"""

import asyncio
import os
import resource
import ssl
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11

from bide.clock import Clock, Timer
from bide.model.limits import MAX_RECEIVER_BODY, MAX_RECEIVER_HEAD, MAX_RECEIVER_INTERIM
from bide.targets.http.addresses import AddressGate, Lookup, NotPublic, first_to_answer, lookup

LINGER = 1.0
"""Seconds to wait for the rest of an answer once its status is known."""

KEEP = 15.0
"""Seconds for which a connection without requests stays open."""

SHARE = 4
"""Push uses at most a quarter of the file descriptors of its process."""

MAX_CONNECTIONS = 4_096
"""The most connections that push has open, however many files its process may open."""


class NoAnswer(Exception):
    """No answer came. The text says why, without anything secret."""


class Reply(NamedTuple):
    """An answer: its status, its headers by lower-case name, and the first part of its body."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Origin(NamedTuple):
    """Where a connection leads; requests to one origin can share it one after the other."""

    scheme: str
    host: str
    port: int


class _Connection:
    """One open connection and its state in the protocol."""

    def __init__(
        self, origin: _Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.origin = origin
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RECEIVER_HEAD)
        self.heard = False
        """Whether any byte of an answer has come since the last request."""

    async def quiet(self) -> bool:
        """Tell whether nothing has come, not even the end."""
        try:
            # A timeout of 0 still lets `read` return what is in the buffer.
            async with asyncio.timeout(0):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self.writer.transport.abort()

    async def event(self) -> h11.Event:
        """Return the next event of the protocol, from as many bytes as it takes.

        Raises:
            h11.RemoteProtocolError: the receiver does not speak HTTP, or closed the connection.
            OSError: the connection broke.
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            data = await self.reader.read(MAX_RECEIVER_HEAD)
            self.heard = self.heard or bool(data)
            self.http.receive_data(data)
        if isinstance(event, type):  # h11.PAUSED: it wants to change the protocol
            raise h11.RemoteProtocolError("the receiver changes the protocol")
        return event


class HttpClient:
    """Sends requests to the addresses that a gate allows.

    Args:
        clock: measures how long connections are kept.
        gate: decides which addresses may be connected to.
        lookup: finds the addresses of a host; by default the system's resolver.
        tls: checks certificates; against the system's authorities by default.
        limit: how many connections may be open; `connection_limit()` by default.
    """

    def __init__(
        self,
        clock: Clock,
        gate: AddressGate,
        *,
        lookup: Lookup = lookup,
        tls: ssl.SSLContext | None = None,
        limit: int | None = None,
    ) -> None:
        self.limit = connection_limit() if limit is None else limit
        self._clock = clock
        self._gate = gate
        self._lookup = lookup
        self._tls = tls
        """Made with the first connection that needs it: reading the authorities takes a while."""
        self._busy = 0
        """How many requests are running; each has a connection, or is about to open one."""
        self._idle: dict[_Connection, Timer] = {}
        """Connections without a request, the longest idle first, with what will close them."""

    @property
    def free(self) -> int:
        """How many more requests may run."""
        return self.limit - self._busy

    async def post(self, url: str, headers: Iterable[tuple[str, str]], body: bytes) -> Reply:
        """Send a request and return the answer. Cancelling this closes the connection.

        Raises:
            NoAnswer: none came, or none that can be read.
        """
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        origin = _Origin(parts.scheme, parts.hostname or "", port)
        request = h11.Request(
            method="POST",
            target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            headers=[
                ("host", parts.netloc),
                ("content-length", str(len(body))),
                # h11 refuses values with white space at an end; it means nothing there.
                *((name, value.strip(" \t")) for name, value in headers),
            ],
        )
        self._busy += 1
        try:
            # The one used last: it is the least likely to have been closed by the receiver.
            idle = next(
                (connection for connection in reversed(self._idle) if connection.origin == origin),
                None,
            )
            if idle is not None:
                self._idle.pop(idle).cancel()
                try:
                    return await self._exchange(idle, request, body)
                except NoAnswer:
                    if idle.heard:
                        raise
                    # The receiver closed the idle connection meanwhile: that says nothing about it.
            return await self._exchange(await self._connect(origin), request, body)
        finally:
            self._busy -= 1

    async def _exchange(self, connection: _Connection, request: h11.Request, body: bytes) -> Reply:
        """Send a request and read its answer; keep the connection if it can have another request.

        Raises:
            NoAnswer: none came, or none that can be read.
        """
        http, keep = connection.http, False
        was_used, connection.heard = connection.heard, False
        try:
            # Bytes before the request: an end of the connection, perhaps after an answer 408.
            if was_used and not await connection.quiet():
                raise NoAnswer("the receiver closed the idle connection")
            parts = request, h11.Data(body), h11.EndOfMessage()
            connection.writer.write(b"".join(http.send(part) or b"" for part in parts))
            # No drain: a receiver may answer before it has read the body, or without reading it.
            response = await self._head(connection)
            body_start = await self._body(connection)
            is_sent = not connection.writer.transport.get_write_buffer_size()
            is_over = is_sent and http.our_state is h11.DONE and http.their_state is h11.DONE
            # Bytes behind the answer would be taken for the answer to the next request.
            keep = is_over and http.trailing_data == (b"", False)
            if keep:
                http.start_next_cycle()
                self._keep(connection)
        except (OSError, h11.RemoteProtocolError) as error:
            text = "the receiver closed the connection without an answer"
            if connection.heard and not isinstance(error, OSError):
                text = "the answer could not be understood: it is not valid HTTP, or it is too long"
            raise NoAnswer(text) from None
        finally:
            if not keep:
                connection.abort()
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers
        }
        return Reply(response.status_code, headers, body_start)

    async def _head(self, connection: _Connection) -> h11.Response:
        """Return the status and headers of the answer; pass over interim answers (1xx)."""
        for _ in range(MAX_RECEIVER_INTERIM + 1):
            event = await connection.event()
            if isinstance(event, h11.Response):
                return event
        raise NoAnswer(f"the receiver sent more than {MAX_RECEIVER_INTERIM} interim answers (1xx)")

    async def _body(self, connection: _Connection) -> bytes:
        """Return the first part of the body, up to `MAX_RECEIVER_BODY` bytes.

        The status is known, so the receiver has answered: a body that breaks, takes longer than
        `LINGER`, or is cut off by a cancellation, is returned as far as it came.
        """
        start = bytearray()
        loop = asyncio.get_running_loop()
        linger_timer = self._clock.call_later(loop, LINGER, connection.abort)
        try:
            while len(start) < MAX_RECEIVER_BODY:
                event = await connection.event()
                if not isinstance(event, h11.Data):  # the end of the body
                    break
                start += event.data
        except (h11.RemoteProtocolError, OSError, asyncio.CancelledError):
            connection.abort()
        finally:
            linger_timer.cancel()
        return bytes(start[:MAX_RECEIVER_BODY])

    def _keep(self, connection: _Connection) -> None:
        """Keep a connection for the next request to its origin, for `KEEP` seconds."""
        loop = asyncio.get_running_loop()
        close = partial(self._drop, connection)
        self._idle[connection] = self._clock.call_later(loop, KEEP, close)

    def _drop(self, connection: _Connection) -> None:
        """Close an idle connection."""
        self._idle.pop(connection).cancel()
        connection.abort()

    async def _connect(self, origin: _Origin) -> _Connection:
        """Connect to the first address that answers.

        Raises:
            NoAnswer: no address answers, or none is allowed.
        """
        # This request counts as busy already: idle connections make room for its connection.
        while self._idle and self._busy + len(self._idle) > self.limit:
            self._drop(next(iter(self._idle)))
        try:
            addresses = await self._gate.addresses(origin.host, origin.port, self._lookup)
            return await first_to_answer(addresses, partial(self._connect_to, origin))
        except OSError as error:
            raise NoAnswer(f"no connection: {_reason(error)}") from error

    async def _connect_to(self, origin: _Origin, address: str) -> _Connection:
        """Connect to one address of an origin.

        Raises:
            OSError: it does not answer, or TLS could not be agreed on.
        """
        tls: dict[str, Any] = {}
        if origin.scheme == "https":
            self._tls = self._tls or ssl.create_default_context()
            # The certificate must be that of the host in the URL: the address is only looked up.
            tls = {"ssl": self._tls, "server_hostname": origin.host}
        reader, writer = await asyncio.open_connection(
            address, origin.port, limit=MAX_RECEIVER_HEAD, **tls
        )
        return _Connection(origin, reader, writer)

    async def close(self) -> None:
        """Close all connections that are idle; the others close with their requests."""
        while self._idle:
            self._drop(next(iter(self._idle)))


def connection_limit() -> int:
    """Return how many connections push may have open in this process.

    That is a quarter of the file descriptors, so that requests, the store and the log keep theirs;
    at least 4, and at most `MAX_CONNECTIONS`.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    # At least a few: else push would never send where the limit is tiny.
    return max(4, min(soft_limit // SHARE, MAX_CONNECTIONS))


def _reason(error: Exception) -> str:
    """Return why there is no connection, in words that tell a stranger nothing of the network."""
    match error:
        case NotPublic():
            return str(error)
        case ssl.SSLCertVerificationError():
            return "the certificate of the host could not be verified"
        case ssl.SSLError():
            return "TLS could not be agreed on"
        case TimeoutError():
            return "the host does not answer"
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else "all addresses failed"
