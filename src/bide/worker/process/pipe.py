"""The socket from a worker process to its supervisor: one report a beat, as a line of JSON."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bide.observing.tally import Tally

LONGEST = 1 << 24
"""The largest report in bytes. A tally takes a few hundred, and a process may have many queues."""


class Report(msgspec.Struct, omit_defaults=True):
    """A report of a process: that its event loop runs, and with metrics, what it has done."""

    ready: bool = False
    """Whether it claims messages."""
    store: str = ""
    """The URL of the store with its password; never log it."""
    tallies: Mapping[str, Tally] = {}
    """By queue, since the process began."""
    stuck: Sequence[str] = ()
    """Queues whose places are all taken by handlers that do not return."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode


class Pipe:
    """The end of the worker process.

    Args:
        descriptor: of the socket.
        cut: called when the supervisor has died.
    """

    def __init__(self, descriptor: int, cut: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._cut = cut
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the socket, and notice when the supervisor closes it."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._waiting = asyncio.create_task(self._wait(reader))

    def tell(self, report: Report) -> None:
        """Send a report, unless the last one is still in the buffer: the next has all figures."""
        writer = self._writer
        if writer is None or writer.is_closing() or writer.transport.get_write_buffer_size():
            return
        writer.write(_encode(report) + b"\n")

    async def close(self, last: Report) -> None:
        """Send the last report, and close the socket."""
        if self._writer is None:
            self._socket.close()
            return
        assert self._waiting is not None
        self._waiting.cancel()
        self.tell(last)
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it has died; `cut` was called

    async def _wait(self, reader: asyncio.StreamReader) -> None:
        """The supervisor sends nothing: a read ends when it has closed the socket or died."""
        try:
            await reader.read()
        except OSError:
            pass  # it was killed
        self._cut()


async def listen(pipe: socket.socket, heard: Callable[[Report], None]) -> None:
    """Receive the reports of a process until it ends. Runs in the supervisor."""
    reader, writer = await asyncio.open_connection(sock=pipe, limit=LONGEST)
    try:
        while said := await reader.readline():
            if said.endswith(b"\n"):  # else it was killed while it wrote
                heard(_decode(said))
    except ConnectionResetError:
        return  # it was killed
    finally:
        writer.close()
