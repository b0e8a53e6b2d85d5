"""A receiver that answers as a test tells it to, and writes down what came: on a real socket."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

__all__ = ["Got", "Receiver", "answer", "receiver"]


class Got(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"].rpartition("/")[2]


Script = Callable[[Got, asyncio.StreamWriter], Awaitable[bytes | None]]


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    head = f"HTTP/1.1 {status} Whatever\r\n"
    for name, value in headers.items():
        head += f"{name.replace('_', '-')}: {value}\r\n"
    return (
        head + f"content-length: {len(body) if length is None else length}\r\n\r\n"
    ).encode() + body


async def accept(got: Got, writer: asyncio.StreamWriter) -> bytes:
    return answer(204)


class Receiver:
    """Calls `script` for each request; what that returns is sent, `None` closes the connection."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.script: Script = accept
        self.port = 0
        self.connections = 0
        self.under_way = 0
        self.most = 0
        self.left = 0
        """How many requests were given up by the other side before they were answered."""
        self.scheme = "http"
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def answers(self, *answers: bytes) -> None:
        """Give these answers, one a request; the last one to all that follow."""
        left = list(answers)

        async def script(got: Got, writer: asyncio.StreamWriter) -> bytes:
            return left.pop(0) if len(left) > 1 else left[0]

        self.script = script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while await self._one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass  # the other side has gone, or the test is over
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        got = Got(method, target, headers, body, number)
        self.got.append(got)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            data = await self.script(got, writer)
        finally:
            self.under_way -= 1
        if data is None:
            return False
        writer.write(data)
        await writer.drain()
        return True

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    it = Receiver()
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0, ssl=tls)
    it.port = server.sockets[0].getsockname()[1]
    it.scheme = "http" if tls is None else "https"
    try:
        yield it
    finally:
        server.close()
        await it.close()
        await server.wait_closed()
