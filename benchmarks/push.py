"""Push by `bide serve` on SQLite, to a receiver in a process of its own."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import bide
from benchmarks.core.store import BODY, folder, queue_in
from benchmarks.figure import Figure
from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription

__all__ = ["run"]

RATE = 200
SECONDS = 6
BACKLOG = 5_000


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (lateness, backlog):
        if only in measurement.__name__:
            yield from measurement()


def lateness() -> Iterator[Figure]:
    """Messages at an even pace: from their due moment until the receiver has the whole request."""
    late = sorted(_measured(RATE * SECONDS, _at_a_pace)["late"])
    p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
    yield Figure(f"lateness of push at {RATE}/s, p50", p50, "ms")
    yield Figure(f"lateness of push at {RATE}/s, p99", p99, "ms", goal="< 15 ms", met=p99 < 15)


def backlog() -> Iterator[Figure]:
    """Messages that are all due, 50 requests at a time."""
    found = _measured(BACKLOG, _at_once)
    yield Figure("push of a backlog, 50 at a time", BACKLOG / found["seconds"][0], "/s")


def _at_a_pace(queue: bide.Queue) -> None:
    begin = time.monotonic()
    for number in range(RATE * SECONDS):
        pause = begin + number / RATE - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        queue.put(BODY, delay=0.5 + number * 7919 % 1500 / 1000)


def _at_once(queue: bide.Queue) -> None:
    for _ in range(BACKLOG // 1_000):
        queue.put_many([BODY] * 1_000)


def _measured(count: int, put: Callable[[bide.Queue], None]) -> dict[str, list[float]]:
    """Push messages, and return what the receiver has written down."""
    with folder() as path, queue_in(path) as queue:
        url = f"sqlite:///{path / 'bide.db'}"
        receiver = [sys.executable, "-m", "benchmarks.push", str(count)]
        server = [
            sys.executable,
            "-m",
            "bide",
            "serve",
            "--store",
            url,
            "--port",
            "0",
            "--log-level",
            "warning",
            "--allow-network",
            "127.0.0.1",
        ]
        with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as receiving:
            assert receiving.stdout is not None
            port = int(receiving.stdout.readline())
            asyncio.run(_subscribe(url, queue.name, port))
            with subprocess.Popen(server) as serving:
                queue.put(BODY)  # once it has arrived, both are at work
                receiving.stdout.readline()
                put(queue)
                output = receiving.stdout.readline()
                serving.terminate()
        found: dict[str, list[float]] = json.loads(output)
        return found


async def _subscribe(url: str, queue: str, port: int) -> None:
    lane = open_lane(url)
    given = Subscription(name="bench", queue=queue, url=f"http://127.0.0.1:{port}/", concurrency=50)
    await Records(lane, SYSTEM_CLOCK).put(given)
    await asyncio.to_thread(close_lane, lane)


class _Receiver(asyncio.Protocol):
    """Answers 204 to each request, and notes how late it is."""

    late: ClassVar[list[float]] = []
    began = 0.0
    over: asyncio.Event
    wanted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with nothing."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        """Answer if the request is whole."""
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found or len(body) < int(_field(head, b"content-length")):
            return
        self.data = b""
        self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        cls = type(self)
        if not cls.began:
            cls.began = time.perf_counter()
            sys.stdout.write("at work\n")
            sys.stdout.flush()
            return
        self.late.append(time.time() * 1000 - int(_field(head, b"bide-due")))
        if len(self.late) == 1:
            cls.began = time.perf_counter()
        if len(self.late) == self.wanted:
            self.over.set()


def _field(head: bytes, name: bytes) -> bytes:
    return head.lower().partition(b"\r\n" + name + b": ")[2].partition(b"\r\n")[0]


async def _receive(count: int) -> None:
    _Receiver.wanted, _Receiver.over = count, asyncio.Event()
    server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await _Receiver.over.wait()
    found = {"late": _Receiver.late, "seconds": [time.perf_counter() - _Receiver.began]}
    sys.stdout.write(json.dumps(found) + "\n")
    server.close()


if __name__ == "__main__":
    asyncio.run(_receive(int(sys.argv[1])))
