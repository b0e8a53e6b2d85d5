"""The server's stream of events: one by one, and as hints of changes."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from bide.engines.http.answers import refusal
from bide.engines.http.channel import ChannelBroken, HttpAnswer, Silent, TooLong
from bide.engines.http.connection import HttpAddress, HttpConnection
from bide.model.errors import AccessDenied, BideError, StoreUnavailable
from bide.model.limits import MAX_EVENT_LINE

SILENCE = 60.0
"""Seconds of silence after which the connection counts as lost; the server sends something every
15 s."""


class EventStream:
    """One connection to a server's events: opened at the first `next`, read by one thread.

    Args:
        address: of the server.
        query: selects the events, as in `/v1/events?query`.
        silence: seconds without data after which the connection counts as lost.
    """

    def __init__(self, address: HttpAddress, query: str, silence: float = SILENCE) -> None:
        self._address = address
        self._path = f"/v1/events?{query}"
        self._silence = silence
        self._connection = HttpConnection(address, silence)
        self._lines: Iterator[bytes] | None = None
        """The lines that come; `None`: the stream is not open."""
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether the server has begun to send events, and has not ended."""
        return self._lines is not None

    def next(self) -> tuple[str, bytes]:
        """Wait for an event; return its name and its data.

        Raises:
            StoreUnavailable: the server is away, has ended the stream, or sends nothing any more.
            StoreError: it refuses the request.
        """
        lines = self._lines or self._open()
        name, why = "", "has ended the stream of events"
        try:
            for line in lines:
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    return name, line[6:]
        except Silent:
            why = f"has said nothing for {self._silence:g} s"
        except (ChannelBroken, UnicodeDecodeError) as error:
            why = f"is gone: {error}"
        except BaseException:  # an interrupt within a line
            self.drop()
            raise
        self.drop()
        raise StoreUnavailable(f"{self._address.shown} {why}")

    def drop(self) -> None:
        """Close the connection; the next call of `next` opens another."""
        self._lines = None
        self._connection.close()

    def close(self) -> None:
        """End a `next` that waits with an error; any thread may call this."""
        self._closed = True
        self._connection.end()

    def _open(self) -> Iterator[bytes]:
        """Ask for the events, and return their lines.

        Raises:
            StoreUnavailable: the server is away, or this was closed.
            StoreError: the server refuses the request.
        """
        if self._closed:
            raise StoreUnavailable("this stream was closed")
        answer = self._connection.stream(self._path, "text/event-stream")
        if answer.status != 200:
            content = b""
            with suppress(ChannelBroken, TooLong):  # it breaks off: its status says enough
                content = answer.body()
            self.drop()
            raise refusal(self._address, answer.status, content)
        self._lines = lines_of(answer)
        if self._closed:  # meanwhile: `close` has found no connection to end
            self._connection.end()
        return self._lines


def lines_of(answer: HttpAnswer) -> Iterator[bytes]:
    """Yield the lines of a stream as they come; one that is too long in pieces.

    Raises:
        ChannelBroken: the stream breaks off, or nothing comes in time.
    """
    line = bytearray()
    for piece in answer.pieces():
        answer.channel.begin_wait()  # a stream may take for ever, as long as something comes
        line += piece
        if b"\n" in piece:
            *whole_lines, line = line.split(b"\n")
            yield from (bytes(whole_line) + b"\n" for whole_line in whole_lines)
        if len(line) > MAX_EVENT_LINE:
            yield bytes(line)
            line.clear()


PAUSE = 1.0
"""How long to wait, in seconds, before the events are asked for again."""


PAUSE_IF_DENIED = 60.0
"""How long, if the server refuses the token: it counts wrong ones, and refuses an address for more
than a few a minute."""


class _Hint(msgspec.Struct):
    """The data of an event that is a hint."""

    queue: str
    """The name of a queue, or of the end of a message."""
    wake_in: int
    """In how many milliseconds something can be claimed."""


class HttpNotifier:
    """Listens to a server's events, and connects again when the stream ends.

    Args:
        address: of the server.
        timeout: seconds to wait for a connection.
    """

    def __init__(self, address: HttpAddress, timeout: float) -> None:
        self._events = EventStream(address, "counts=0", max(SILENCE, timeout))
        self._closed = threading.Event()
        self._has_failed = False
        """Whether the events could not be read, once or more."""

    @property
    def is_listening(self) -> bool:
        """Whether the stream of events is open, or is being opened for the first time."""
        return self._events.is_open or not self._has_failed

    def listen(self) -> list[tuple[str, int]]:
        """Block until a hint comes; an empty list once this is closed."""
        while not self._closed.is_set():
            try:
                name, data = self._events.next()
                if name == "hint":
                    hint = msgspec.json.decode(data, type=_Hint)
                    # By the clock of this machine: the server says in how many milliseconds.
                    return [(hint.queue, time.time_ns() // 1_000_000 + hint.wake_in)]
            except (BideError, msgspec.DecodeError) as error:
                # Claims that wait look again by themselves meanwhile.
                self._has_failed = True
                self._events.drop()
                is_denied = isinstance(error, AccessDenied)
                self._closed.wait(PAUSE_IF_DENIED if is_denied else PAUSE)
        self._events.drop()
        return []

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._events.close()
