"""A proxy between bide and the broker: it cuts connections, or lets nothing through any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Proxy", "proxy"]


class Proxy:
    """Forwards connections to a port until it is told not to."""

    def __init__(self, to: int) -> None:
        self.port = 0
        self.connections = 0
        """How many were made so far."""
        self._to = to
        self._pipes: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def open(self) -> int:
        """How many directions of connections are open."""
        return len(self._pipes)

    def freeze(self) -> None:
        """Let nothing more through on the connections that there are, and keep them: half-open."""
        for pipe in self._pipes:
            pipe.cancel()

    def hold_answers(self) -> None:
        """Let nothing more through that comes from the other side."""
        for pipe in self._answers:
            pipe.cancel()

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self.freeze()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection, both ways."""
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            pipe = asyncio.create_task(_forward(source, sink))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)
        self._answers.add(pipe)


@asynccontextmanager
async def proxy(to: int) -> AsyncIterator[Proxy]:
    """Provide a proxy to a port."""
    it = Proxy(to)
    server = await asyncio.start_server(it.accept, "127.0.0.1", 0)
    it.port = server.sockets[0].getsockname()[1]
    try:
        yield it
    finally:
        server.close()
        it.cut()


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(65_536):
            sink.write(part)
            await sink.drain()
        sink.close()
    except OSError:
        sink.transport.abort()
