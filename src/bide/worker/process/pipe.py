"""The line from a worker process to its supervisor: one report a beat, as a line of JSON."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bide.observing.tally import Tally

__all__ = ["Pipe", "Report", "listen"]

LONGEST = 1 << 24
"""Bytes of a report at most: a tally takes a few hundred, and a process may have many queues."""


class Report(msgspec.Struct, omit_defaults=True):
    """What a process tells: that its event loop moves, and if it is asked for, what it has done."""

    ready: bool = False
    """Whether it claims messages."""
    store: str = ""
    """The store's URL, with its password: for the supervisor's eyes, never for a log."""
    tallies: Mapping[str, Tally] = {}
    """By queue, since the process began."""
    stuck: Sequence[str] = ()
    """Queues all of whose places are taken by handlers that do not return."""


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
        """Begin to speak, and to hear whether anybody is there."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._waiting = asyncio.create_task(self._wait(reader))

    def tell(self, report: Report) -> None:
        """Send a report, unless an earlier one has not been heard yet: the next one tells all."""
        writer = self._writer
        if writer is None or writer.is_closing() or writer.transport.get_write_buffer_size():
            return
        writer.write(_encode(report) + b"\n")

    async def close(self, last: Report) -> None:
        """Say a last word, and hang up."""
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
            return  # it has died, which `cut` has told

    async def _wait(self, reader: asyncio.StreamReader) -> None:
        """The supervisor never says anything: whatever comes is the end."""
        try:
            await reader.read()
        except OSError:
            pass  # it was killed, which is an end as well
        self._cut()


async def listen(line: socket.socket, heard: Callable[[Report], None]) -> None:
    """Hear what a process tells, until it ends; the supervisor's end of the line."""
    reader, writer = await asyncio.open_connection(sock=line, limit=LONGEST)
    try:
        while said := await reader.readline():
            if said.endswith(b"\n"):  # else it was killed in the middle of a word
                heard(_decode(said))
    except ConnectionResetError:
        return  # it was killed
    finally:
        writer.close()
