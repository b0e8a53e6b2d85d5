"""A connection to a broker: opened when it is needed, and opened again after it was lost."""

import asyncio
import random
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ConnectionClosed,
    DeliveryError,
    IncompatibleProtocolError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
)
from aiormq.connection import TransportFactory
from aiormq.exceptions import ConnectionNotAllowed
from pamqp.constants import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from pamqp.header import ContentHeader
from yarl import URL

from bide.clock import Clock, sleep
from bide.model.backoff import Backoff
from bide.model.limits import MAX_AMQP_BODY
from bide.targets.amqp import Address
from bide.targets.http.addresses import AddressGate, NotPublic, first_to_answer, lookup

DELIVER = b"\x00\x3c\x00\x3c"
"""Basic.Deliver. Then come: consumer tag (short text), delivery tag (8 bytes), whether it comes
again (1 byte), exchange and routing key (short texts)."""

PIECE = 65_536
"""How many bytes of skipped content are read at a time."""

FIXED = 12
"""How many bytes are before the properties of a content header; the last 8 are the body's size."""


class FrameReader(asyncio.StreamReader):
    """Reads frames as aiormq does: one byte, the kind; six, with the size; the rest.

    Messages that the client library cannot decode, or that are huge, must not end the process.
    aiormq decodes frames while it reads, and fails for text that is not UTF-8, for impossible times
    and for deeply nested headers. Brokers accept them. The connection would end each time that such
    a message is delivered, and nothing behind it would ever be taken. So its properties are left
    out here, and the intake rejects it. The same goes for the body of a huge message, which aiormq
    would keep in memory. A frame that announces more than the largest body ends the connection: a
    broker may be hostile, and aiormq would keep up to 4 GiB of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out: set[int] = set()
        """The delivery tags of messages that cannot be decoded, or are huge."""
        self._step: Literal["type", "size", "payload"] = "type"
        """Which part of a frame aiormq reads next."""
        self._has_begun = False
        """Whether the size of a frame was read before."""
        self._frame_type = 0
        self._delivery_tag = 0
        """Of the last Basic.Deliver: the header and the body behind it belong to this message."""
        self._bytes_to_skip = 0
        """How many bytes of a body that is left out are still to come."""

    async def readexactly(self, n: int) -> bytes:
        """Return so many bytes, which can be decoded if they are a frame's payload.

        Raises:
            ConnectionError: the frame is larger than any that a broker needs to send.
        """
        data = await super().readexactly(n)
        match self._step:
            case "type":
                # aiormq does not see the frames of a body that is left out.
                while self._bytes_to_skip and data[0] == FRAME_BODY:
                    await self._skip_frame()
                    data = await super().readexactly(n)
                self._frame_type = data[0]
                self._step = "size"
            case "size":
                self._check_size(data)
                self._step = "payload"
            case "payload":
                if self._frame_type == FRAME_METHOD and data.startswith(DELIVER):
                    data = self._decodable_delivery(data)
                elif self._frame_type == FRAME_HEADER:
                    data = self._decodable_header(data)
                self._step = "type"
        return data

    async def _skip_frame(self) -> None:
        """Read the rest of a frame of a body, behind its type, and drop it."""
        channel_and_size = await super().readexactly(6)
        size = int.from_bytes(channel_and_size[2:])
        remaining = size + 1  # with the end of the frame
        while remaining > 0:
            remaining -= len(await super().readexactly(min(remaining, PIECE)))
        self._bytes_to_skip -= size

    def _check_size(self, channel_and_size: bytes) -> None:
        """Check the size of a frame.

        Raises:
            ConnectionError: it is too large.
        """
        # A server that has another version of AMQP answers "AMQP" and the version, which is no
        # frame: aiormq has an error for that.
        first_bytes = bytes((self._frame_type,)) + channel_and_size[:3]
        is_version = not self._has_begun and first_bytes == b"AMQP"
        self._has_begun = True
        if not is_version and int.from_bytes(channel_and_size[2:]) > MAX_AMQP_BODY:
            raise ConnectionError(f"the broker sends a frame of more than {MAX_AMQP_BODY:,} bytes")

    def _decodable_delivery(self, data: bytes) -> bytes:
        """Return a Basic.Deliver whose routing key is text; see `DELIVER` for its fields."""
        consumer_tag_size = data[len(DELIVER)]
        tag_start = len(DELIVER) + 1 + consumer_tag_size
        tag_end = tag_start + 8
        self._delivery_tag = int.from_bytes(data[tag_start:tag_end])
        exchange_size = data[tag_end + 1]
        key_start = tag_end + 1 + 1 + exchange_size + 1
        key = data[key_start:-1]  # the last byte is the end of the frame
        try:
            key.decode()
        except UnicodeDecodeError:
            self.left_out.add(self._delivery_tag)
            return data[:key_start] + b"?" * len(key) + data[-1:]
        return data

    def _decodable_header(self, data: bytes) -> bytes:
        """Return a content header that aiormq can decode, and whose body it can keep in memory."""
        body_size = int.from_bytes(data[FIXED - 8 : FIXED])
        if body_size <= MAX_AMQP_BODY and _decodes(data[:-1]):
            return data
        self.left_out.add(self._delivery_tag)
        self._bytes_to_skip = body_size
        # Zeros: a body of 0 bytes and no properties, in a frame of the same size.
        return data[: FIXED - 8].ljust(len(data) - 1, b"\0") + data[-1:]


def _decodes(header: bytes) -> bool:
    """Tell whether the client library can decode a content header."""
    try:
        ContentHeader().unmarshal(header)
    except Exception:  # noqa: BLE001  (whatever it is, aiormq would fail with it, too)
        return False
    return True


PAUSES = Backoff(first="100ms", factor=2, ceiling="5s", jitter=0.2)
"""Between attempts to connect."""

CONNECT = 10.0
"""Seconds to connect, and to open or close a channel."""

SMALLEST_FRAME = 4_096
"""The least bytes of a frame that AMQP has as a limit. With less, a body would be a million."""

LOST = (AMQPError, OSError, RuntimeError, TimeoutError)
"""What aio-pika raises when a connection or a channel is lost, or is closed already."""


class Refused(Exception):
    """The broker refuses the connection for a reason that waiting does not remove."""


@contextmanager
def stray_cancel_is_loss() -> Iterator[None]:
    """Raise `ConnectionError` where aiormq cancels those who wait on a connection that it gives up.

    A cancellation that was asked for goes on.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionError("the broker was silent for too long") from None


class Broker:
    """One connection to a broker.

    Args:
        address: which broker.
        clock: measures pauses.
        gate: which addresses may be connected to; all if it is `None`.
    """

    def __init__(self, address: Address, clock: Clock, gate: AddressGate | None = None) -> None:
        self.address = address
        self._clock = clock
        self._transport = _Transport(gate)
        self._connection: aio_pika.Connection | None = None
        """The last one that was opened; `None`: there is none, or it was given up."""
        self._opening = asyncio.Lock()
        """Held while a connection is opened: callers that come meanwhile use the same one."""
        self._closing: set[asyncio.Task[None]] = set()
        """What closes connections that were given up."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None and self._connection.connected.is_set()

    def was_left_out(self, message: AbstractIncomingMessage) -> bool:
        """Tell, once, whether the content of a message was left out; see `FrameReader`."""
        tags, tag = self._transport.reader.left_out, message.delivery_tag
        is_left_out = tag in tags
        tags.discard(tag or 0)  # RabbitMQ numbers deliveries from 1
        return is_left_out

    async def channel(self, *, confirms: bool = True) -> AbstractChannel:
        """Return a new channel. Connects first if there is no connection.

        Args:
            confirms: whether the broker confirms each message that is published on it, or returns
                it as unroutable.

        Raises:
            Refused: waiting does not help.
            Exception: one of `LOST`, the broker is away.
        """
        async with self._opening:
            if not self.connected:
                self.drop()
                self._connection = await self._connect()
        connection = self._connection
        if connection is None:  # `drop` came after the lock was released
            raise ConnectionError("the connection was closed meanwhile")
        channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize(timeout=CONNECT)
        return channel

    async def pause(self, attempt: int) -> None:
        """Wait before another attempt, longer after each one that failed.

        Args:
            attempt: how many have failed in a row.
        """
        await sleep(self._clock, PAUSES.delay(attempt, random.random()) / 1000)

    async def unblocked(self) -> None:
        """Wait while the broker accepts no messages, since its memory or disk is low."""
        if self._connection is not None and self._connection.transport is not None:
            await self._connection.transport.ready()

    def drop(self) -> None:
        """Give the connection up; the next channel opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            closing = asyncio.ensure_future(_close(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the connection."""
        self.drop()
        await asyncio.gather(*self._closing)

    async def _connect(self) -> aio_pika.Connection:
        """Open a connection.

        Raises:
            Refused: waiting does not help.
            Exception: one of `LOST`, the broker is away.
        """
        address = self.address
        url = URL(address.broker, encoded=True).update_query(heartbeat=address.heartbeat)
        connection = aio_pika.Connection(
            url, client_properties={"connection_name": "bide"}, ssl_context=self._tls()
        )
        connection.kwargs["transport_factory"] = self._transport
        try:
            try:
                await connection.connect(timeout=CONNECT)
                _check_frames(connection)
            except BaseException:
                await connection.close()  # or it warns that it is not closed
                raise
        except (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed) as error:
            raise Refused(f"{address.host} refused the connection: {_text(error)}") from error
        except InvalidFrameError as error:
            # Instead of OpenOk, the broker closes the connection if it does not know the virtual
            # host. The client library has no other error for it.
            if "Connection.OpenOk" not in str(error):
                raise
            raise Refused(
                f"{address.host} has no such virtual host, or denies access to it"
            ) from error
        except IncompatibleProtocolError as error:
            raise Refused(f"{address.host} does not speak AMQP 0-9-1 on this port") from error
        return connection

    def _tls(self) -> ssl.SSLContext | None:
        """Return the context of TLS; `None` for a connection without TLS.

        Raises:
            Refused: the files that the URL names cannot be read.
        """
        address = self.address
        if not address.broker.startswith("amqps:"):
            return None
        try:
            context = ssl.create_default_context(cafile=address.cafile)
            if address.certfile is not None:
                context.load_cert_chain(address.certfile, address.keyfile)
        except (OSError, ssl.SSLError) as error:
            raise Refused(f"the TLS files in the URL cannot be read: {error}") from error
        return context


class _Transport(TransportFactory):
    """Connects to the addresses that the gate allows, judged after the name was looked up."""

    def __init__(self, gate: AddressGate | None) -> None:
        self._gate = gate
        self.reader = FrameReader()
        """What reads the current connection, or will read the first one."""

    async def create(
        self, url: URL, **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of a new connection; aiormq calls it.

        Raises:
            Refused: waiting does not help.
            OSError: no address answers.
        """
        provider = options.pop("ssl_context_provider")
        host, port = url.host or "", url.port or 0
        tls: dict[str, Any] = {}
        if url.scheme == "amqps":
            # The certificate must be that of the host in the URL, whatever its address is.
            tls = {"ssl": await provider.get_context(), "server_hostname": url.host}
        try:
            if self._gate is None:
                addresses = await lookup(host)
            else:
                addresses = await self._gate.addresses(host, port, lookup)
            return await first_to_answer(addresses, partial(self._open, port=port, **tls))
        except NotPublic as error:
            raise Refused(str(error)) from error
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"the certificate of {url.host} could not be verified: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise Refused(f"{url.host} does not speak TLS on this port") from error

    async def _open(
        self, host: str, port: int, **tls: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as `asyncio.open_connection` does, with a `FrameReader` of its own."""
        loop = asyncio.get_running_loop()
        self.reader = FrameReader()
        protocol = asyncio.StreamReaderProtocol(self.reader)
        transport, _ = await loop.create_connection(lambda: protocol, host, port, **tls)
        return self.reader, asyncio.StreamWriter(transport, protocol, self.reader, loop)


def _check_frames(connection: aio_pika.Connection) -> None:
    """Check the limit that a broker, which may be hostile, has for frames; 0 means no limit.

    Raises:
        Refused: the broker's limit is smaller than `SMALLEST_FRAME`.
    """
    assert connection.transport is not None
    size = connection.transport.connection.connection_tune.frame_max
    if 0 < size < SMALLEST_FRAME:
        raise Refused(f"the broker takes frames of {size} bytes; AMQP has {SMALLEST_FRAME:,}")


async def _close(connection: aio_pika.Connection) -> None:
    """Close a connection, also one that is broken."""
    try:
        await asyncio.wait_for(connection.close(), CONNECT)
    except LOST:
        pass  # it was lost already, or is half open


def reason_of(error: BaseException) -> str:
    """Return in words what went wrong, without the URL.

    Example:
        >>> reason_of(ConnectionRefusedError(111, "Connection refused"))
        'the broker is away: Connection refused'
    """
    match error:
        case Refused():
            return str(error)
        case PublishError():
            return f"unroutable: {_text(error)}"
        case DeliveryError():
            return "the broker rejected the message (basic.nack): a queue is full or failed"
        case ConnectionClosed() | ChannelClosed():
            return f"the broker closed the channel: {_text(error)}"
        case TimeoutError():
            return "the broker did not answer in time"
        case OSError() if error.strerror:
            return f"the broker is away: {error.strerror}"
        case _:
            return f"the connection was lost: {_text(error)}"


def _text(error: BaseException) -> str:
    """Return the text of an error of the client library, which has it in several arguments."""
    return " ".join(str(part) for part in error.args if part)[:500] or type(error).__name__
