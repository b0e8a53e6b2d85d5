"""The server under attack, and how its attackers reach it."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]


class Target(NamedTuple):
    """The server under attack, and what the attacker may do there."""

    host: str
    port: int
    token: str
    """Of the attacker's own namespace, with every right there."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_addresses: Iterator[str] = itertools.cycle(ADDRESSES)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Streams]:
    """Open a connection from the next address; close it, whatever became of it."""
    reader, writer = await asyncio.open_connection(
        target.host, target.port, local_addr=(next(_addresses), 0)
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request_of(target: Target, method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {target.host}\r\nAuthorization: Bearer {target.token}"
        f"\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def send_on(target: Target, request: bytes) -> None:
    """Send a request again and again on one connection, and read what comes."""
    async with connected(target) as (reader, writer):
        while True:
            writer.write(request)
            await writer.drain()
            if not await reader.read(1 << 16):
                return


async def again(once: Callable[[], Awaitable[None]]) -> None:
    """Do it for ever: the server may hang up, refuse or be short of something."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await once()
        await asyncio.sleep(0.01)


async def at_once(count: int, once: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(again(once))


async def stream_on(target: Target, start: bytes, line: bytes, pause: float = 0) -> None:
    async with connected(target) as (_, writer):
        writer.write(start)
        while not writer.transport.is_closing():
            writer.write(line)
            await writer.drain()
            await asyncio.sleep(pause)
