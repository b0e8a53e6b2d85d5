"""The load program: connections that send requests as fast as answers come, and no client library.

A process of its own: `python -m benchmarks.server.load PORT WORK SECONDS`.
"""

import asyncio
import json
import sys
import time
from typing import Any

from bide.worker.process.child import loop_factory

__all__ = ["main"]

BODY = "x" * 240
CONNECTIONS = 64
BATCH = 500
CLAIM = 100


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, data: bytes) -> bytes:
        """Send a request, and return the body of its answer."""
        self._writer.write(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (method.encode(), path.encode(), len(data), data)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(head.decode())
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def line(port: int) -> Line:
    """Open a connection."""
    return Line(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))


async def singles(port: int, seconds: float) -> dict[str, float]:
    """Put messages one a request."""
    data = json.dumps({"body": BODY, "delay": 3600}).encode()
    path = "/v1/queues/bench/messages"
    return {"rate": await _rate(port, seconds, CONNECTIONS, lambda on: on.ask("POST", path, data))}


async def batches(port: int, seconds: float) -> dict[str, float]:
    """Put messages, 500 a request."""
    data = json.dumps({"messages": [{"body": BODY, "delay": 3600}] * BATCH}).encode()
    path = "/v1/queues/bench/put"
    rate = await _rate(port, seconds, 4, lambda on: on.ask("POST", path, data))
    return {"rate": rate * BATCH}


async def drain(port: int, seconds: float) -> dict[str, float]:
    """Claim 100 at a time, and ack them."""
    data = json.dumps({"messages": [{"body": BODY}] * BATCH}).encode()
    first = await line(port)
    for _ in range(int(seconds * 40_000 / BATCH)):
        await first.ask("POST", "/v1/queues/drain/put", data)
    first.close()
    done = 0

    async def work() -> None:
        nonlocal done
        on = await line(port)
        asked = json.dumps({"count": CLAIM, "lease": "10m"}).encode()
        while True:
            claimed = json.loads(await on.ask("POST", "/v1/queues/drain/claim", asked))["messages"]
            if not claimed:
                on.close()
                return
            leases = [{"id": m["id"], "token": m["token"]} for m in claimed]
            said = json.dumps({"leases": leases}).encode()
            await on.ask("POST", "/v1/queues/drain/ack", said)
            done += len(claimed)

    began = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(8)])
    return {"rate": done / (time.perf_counter() - began)}


async def polls(port: int, seconds: float) -> dict[str, float]:
    """How long after its due moment a message is in the hands of a client that waited for it."""
    putting, claiming = await line(port), await line(port)
    asked = json.dumps({"wait": "10s", "lease": "10m"}).encode()
    late: list[float] = []
    for _ in range(int(seconds * 10)):
        due = time.time() + 0.05
        data = json.dumps({"body": 1, "at": due}).encode()
        waiting = asyncio.ensure_future(claiming.ask("POST", "/v1/queues/poll/claim", asked))
        await putting.ask("POST", "/v1/queues/poll/messages", data)
        await waiting
        late.append(time.time() - round(due, 3))
    late.sort()
    return {"p50": late[len(late) // 2] * 1000, "p99": late[int(len(late) * 0.99)] * 1000}


async def idle(port: int, seconds: float) -> dict[str, float]:
    """Wait on a thousand connections for what does not come."""
    asked = json.dumps({"wait": seconds + 5}).encode()
    lines = [await line(port) for _ in range(1_000)]
    waiting = [
        asyncio.ensure_future(on.ask("POST", "/v1/queues/idle/claim", asked)) for on in lines
    ]
    await asyncio.sleep(2)
    sys.stdout.write("waiting\n")
    sys.stdout.flush()
    await asyncio.sleep(seconds)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return {}


async def _rate(port: int, seconds: float, connections: int, ask: Any) -> float:
    done = 0
    until = time.perf_counter() + seconds

    async def work() -> None:
        nonlocal done
        on = await line(port)
        while time.perf_counter() < until:
            await ask(on)
            done += 1
        on.close()

    began = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(connections)])
    return done / (time.perf_counter() - began)


WORK = {work.__name__: work for work in (singles, batches, drain, polls, idle)}


def main() -> None:
    """Do one kind of work, and print what came out as JSON."""
    port, work, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        found = loop.run(WORK[work](int(port), float(seconds)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
