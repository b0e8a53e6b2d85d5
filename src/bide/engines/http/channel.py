"""An open connection to a server, and answers on it: HTTP/1.1, as far as a client of bide needs it.

`http.client` keeps the unfinished head of a request that was interrupted, sends head and body one
by one, which takes a lone request twice as long, and bounds neither interim answers nor the time
of a whole answer.
"""

import re
import socket
import time
from collections.abc import Iterator
from functools import partial

from bide.engines.waiting import watch
from bide.model.limits import MAX_ANSWER, MAX_HEAD, MAX_INTERIM

PACE = 1024 * 1024
"""So many bytes of an answer have to come within each timeout."""

_PIECE = 64 * 1024
"""How many bytes are read at once."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?", re.DOTALL)
_NO_BODY = (204, 304)


class ChannelBroken(Exception):
    """There is no answer, or none that is HTTP. Nothing else on this channel can be trusted."""


class Silent(ChannelBroken):
    """Nothing came in time."""


class TooLong(Exception):
    """An answer is longer than `MAX_ANSWER`."""


class Channel:
    """An open connection. Whoever asks on it owns it until the answer is whole, or closes it.

    Args:
        connection: to the server.
        timeout: seconds for a request to be sent, for the head of its answer to come, and for each
            `PACE` bytes of it.
    """

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        self._socket = connection
        self._timeout = timeout
        self._received = bytearray()
        """What has come and was not taken."""
        self._readable = watch(connection.fileno())
        """Returns whether something can be read, or the connection has ended."""
        self._deadline = 0.0
        """When the wait ends, by the monotonic clock."""
        self._bytes_since_deadline = 0
        """How many bytes have come since the deadline was set."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come that was not asked for, such as the end of the connection."""
        return not self._received and not self._readable()

    def send(self, request: bytes) -> None:
        """Send a request.

        Raises:
            ChannelBroken: it was not sent as a whole.
        """
        self._socket.settimeout(self._timeout)
        self.begin_wait()
        try:
            self._socket.sendall(request)
        except OSError as error:
            if self._is_interrupt(error):
                raise
            raise _lost(error) from error

    def answer(self) -> "HttpAnswer":
        """Read the head of the answer to the request that was sent.

        Raises:
            ChannelBroken: none came in time, or what came is none.
        """
        self.begin_wait()
        for _ in range(MAX_INTERIM + 1):
            version, status, fields = self._head()
            if status >= 200:  # those below are interim answers
                return HttpAnswer(self, status, fields, keeps=version == b"1")
        raise ChannelBroken(f"it sent more than {MAX_INTERIM} interim answers")

    def early_answer(self) -> "HttpAnswer | None":
        """Return the answer that came while a request was sent, if one did."""
        if not self._readable():
            return None
        try:
            return self.answer()
        except ChannelBroken:
            return None

    def end(self) -> None:
        """Make another thread that reads see the end of the connection."""
        try:  # not that of `ssl.SSLSocket`: it takes away what the other thread uses
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    # For answers.

    def begin_wait(self) -> None:
        """Restart the timeout."""
        self._deadline = time.monotonic() + self._timeout
        self._bytes_since_deadline = 0

    def take(self, most: int | None) -> bytes:
        """Return the next bytes, at least one; `b""` at the end of the connection.

        `most`: how many bytes at most; `None`: all that have come.
        """
        if not self._received and not self._receive():
            return b""
        piece = bytes(self._received[:most])
        del self._received[:most]
        return piece

    def line(self, most: int = MAX_HEAD, end: bytes = b"\r\n") -> bytes:
        """Return the next line, or what ends with another `end`, without that.

        Raises:
            ChannelBroken: it has more than `most` bytes, or does not come.
        """
        searched = 0  # how many bytes have no end in them; one may begin in the last of these
        while (length := self._received.find(end, max(0, searched - len(end)))) < 0:
            searched = len(self._received)
            if searched > most:
                raise ChannelBroken(f"its answer has a line or a head of more than {most:,} bytes")
            if not self._receive():
                raise ChannelBroken("it closed the connection")
        line = bytes(self._received[:length])
        del self._received[: length + len(end)]
        return line

    def _head(self) -> tuple[bytes, int, dict[bytes, bytes]]:
        """Read the head of an answer: its version, its status, and its fields.

        The version is the digit behind "HTTP/1.", names of fields are in lower case.
        """
        first, *lines = self.line(end=b"\r\n\r\n").split(b"\r\n")
        if (status := _STATUS.fullmatch(first)) is None:
            raise ChannelBroken(f"its answer is not HTTP/1.1: {first[:60]!r}")
        fields: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            fields[name] = b"%b, %b" % (fields[name], value) if name in fields else value
        return status[1], int(status[2]), fields

    def _receive(self) -> bool:
        """Wait for more; return False at the end of the connection."""
        if (remaining := self._deadline - time.monotonic()) <= 0:
            raise Silent("no answer in time")
        try:
            self._socket.settimeout(remaining)
            data = self._socket.recv(_PIECE)
        except OSError as error:
            if self._is_interrupt(error):
                raise
            raise _lost(error) from error
        self._received += data
        self._bytes_since_deadline += len(data)
        if self._bytes_since_deadline >= PACE:
            self.begin_wait()
        return bool(data)

    def _is_interrupt(self, error: OSError) -> bool:
        """Whether a signal handler has raised a `TimeoutError`, too early for one of the socket."""
        is_timeout = isinstance(error, TimeoutError) and error.errno is None
        return is_timeout and time.monotonic() < self._deadline


class HttpAnswer:
    """An answer whose head was read.

    Args:
        channel: the rest of it comes there.
        status: of the answer.
        fields: of its head, with names in lower case.
        keeps: whether its version keeps the connection for another request.
    """

    def __init__(
        self, channel: Channel, status: int, fields: dict[bytes, bytes], *, keeps: bool
    ) -> None:
        self.channel = channel
        self.status = status
        self.fields = fields
        self.length = self._announced_length()
        """The bytes of its body; `None`: it is chunked, or ends with the connection."""
        self._chunked = b"transfer-encoding" in fields
        closes = b"close" in fields.get(b"connection", b"").lower()
        announces_end = self._chunked or self.length is not None
        self.keeps = keeps and not closes and announces_end
        """Whether the server takes another request on the connection."""

    def _announced_length(self) -> int | None:
        """Return the length of the body that the head announces, if it does.

        Raises:
            ChannelBroken: what it announces cannot be.
        """
        coding = self.fields.get(b"transfer-encoding")
        length = self.fields.get(b"content-length")
        if coding is not None and coding.lower() != b"chunked":
            raise ChannelBroken(f"its answer has the transfer-encoding {coding[:60]!r}")
        if self.status in _NO_BODY:
            return 0
        if coding is not None or length is None:
            return None
        if not _LENGTH.fullmatch(length):
            raise ChannelBroken(f"its answer has the content-length {length[:60]!r}")
        return int(length)

    def body(self) -> bytes:
        """Read the whole body.

        Raises:
            ChannelBroken: its end is missing.
            TooLong: it has more than `MAX_ANSWER` bytes.
        """
        too_long = TooLong(f"more than {MAX_ANSWER:,} bytes")
        if (self.length or 0) > MAX_ANSWER:
            raise too_long
        pieces, size = [], 0
        for piece in self.pieces():
            pieces.append(piece)
            if (size := size + len(piece)) > MAX_ANSWER:
                raise too_long
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Return the body as it comes.

        The iterator raises `ChannelBroken` if the end of the body is missing.
        """
        if self._chunked:
            return self._chunks()
        if self.length is not None:
            return self._exactly(self.length)
        return iter(partial(self.channel.take, None), b"")

    def _chunks(self) -> Iterator[bytes]:
        """Yield chunks as they come, up to the last one.

        Raises:
            ChannelBroken: the last one is missing.
        """
        while size := self._size_of_chunk():
            yield from self._exactly(size)
            if self.channel.line():
                raise ChannelBroken("its answer has a chunk that is longer than announced")
        while self.channel.line():  # fields behind the body, up to an empty line
            pass

    def _exactly(self, size: int) -> Iterator[bytes]:
        """Yield so many bytes as they come.

        Raises:
            ChannelBroken: fewer come.
        """
        remaining = size
        while remaining:
            if not (piece := self.channel.take(remaining)):
                raise ChannelBroken("it closed the connection within its answer")
            remaining -= len(piece)
            yield piece

    def _size_of_chunk(self) -> int:
        """Read the line before a chunk; return how many bytes the chunk has, 0 for the last one."""
        line = self.channel.line()
        if (size := _CHUNK.fullmatch(line)) is None:
            raise ChannelBroken(f"its answer has a chunk of the size {line[:60]!r}")
        return int(size[1], 16)


def _lost(error: OSError) -> ChannelBroken:
    """Return the error of a channel whose socket has failed."""
    timed_out = isinstance(error, TimeoutError)
    return Silent("no answer in time") if timed_out else ChannelBroken(words(error))


def words(error: Exception) -> str:
    """Return what went wrong, for an error of the network."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
