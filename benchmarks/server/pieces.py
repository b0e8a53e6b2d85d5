"""Where lone calls through a server spend their time, from the client's call to its result.

`python -m benchmarks.server.pieces STORE` is the server: it prints its port, and at the end of its
standard input the moments of each call.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import bide
from benchmarks.compare.raw_work import raw_work
from benchmarks.core.store import BODY, folder
from benchmarks.figure import Figure
from benchmarks.stamps import Stamp, Stamps, pieces
from bide.engines.http import connection as client
from bide.engines.http.channel import Channel
from bide.engines.http.engine import HttpEngine
from bide.lane.executor import Executor
from bide.observing.logs import configure
from bide.server import app
from bide.server.app import ServerApp
from bide.server.http.connection import Connection
from bide.server.http.http_server import HttpServer
from bide.server.limits.batches import Batches
from bide.server.routes import batch
from bide.server.serve import bind
from bide.server.settings import Settings
from bide.worker.process.child import loop_factory

__all__ = ["lone_calls"]

SENT = "client: send"
CALLS = 700
WARM = 100
LATER = "1h"


def lone_calls() -> Iterator[Figure]:
    """Name each piece of one put, get and cancel after the other, beside `GET /healthz`."""
    stamps = _client_stamps()
    for store in ("memory://", ""):
        with folder() as path:
            yield from _of_store(store or f"sqlite:///{path}/bide.db", stamps)


def _of_store(store: str, stamps: Stamps) -> Iterator[Figure]:
    of_client: dict[str, list[list[Stamp]]] = {}
    raw_times: dict[str, list[float]] = {}
    with _server(store) as (url, server_calls):
        raw = raw_work("http", url)["read"].work
        with bide.Queue("lone", url) as queue:
            ids = [f"m{number}" for number in range(CALLS)]
            calls: dict[str, Callable[[str], object]] = {
                "put": lambda id: queue.put(BODY, id=id, delay=LATER),
                "get": queue.get,
                "cancel": queue.cancel,
            }
            queue.put(BODY, delay=LATER)
            for name, call in calls.items():
                stamps.calls.clear()
                raw_times[name] = []
                for id in ids:
                    stamps.mark("begin")
                    call(id)
                    stamps.mark("client: result of the reply")
                    stamps.finish()
                    raw_times[name].append(_microseconds(lambda: raw(())))
                of_client[name] = stamps.calls[WARM:]
        of_server = server_calls()
    kind = store.partition(":")[0]
    for name, own in of_client.items():
        begins, ends = own[0][0][1], own[-1][-1][1]
        its = [call for call in of_server if begins < call[0][1] < ends]
        both = [_merged(mine, theirs) for mine, theirs in zip(own, its, strict=True)]
        whole = statistics.median((call[-1][1] - call[0][1]) * 1e6 for call in own)
        yield Figure(f"one {name}, {kind}", whole, "µs", statistics.median(raw_times[name]))
        after = [call[-len(AFTER) - 1 :] for call in its]
        for piece, value in {**pieces(both), **pieces(after)}.items():
            yield Figure(f"{name}, {kind}, {piece}", value, "µs")


def _batches(stamps: list[Stamp]) -> list[list[Stamp]]:
    """Return the stamps of each batch; a request ends with its line in the log."""
    requests: list[list[Stamp]] = [[]]
    for stamp in stamps:
        requests[-1].append(stamp)
        if stamp[0] == LOGS:
            requests.append([])
    return [request for request in requests if any(piece == DECODED for piece, _ in request)]


def _merged(of_client: list[Stamp], of_server: list[Stamp]) -> list[Stamp]:
    """Return the stamps of one call in their order, up to its result."""
    at = [piece for piece, _ in of_client].index(SENT) + 1
    before = [stamp for stamp in of_server if stamp[0] not in AFTER]
    return [*of_client[:at], *before, *of_client[at:]]


def _microseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def _client_stamps() -> Stamps:
    stamps = Stamps()
    stamps.watch(HttpEngine, "execute", before="client: command, lane", after="client: decode")
    stamps.watch(client.HttpConnection, "ask", before="client: encode")
    stamps.watch(Channel, "send", after=SENT)
    stamps.watch(Channel, "answer", after="network, client: head of the answer")
    return stamps


@contextmanager
def _server(store: str) -> Iterator[tuple[str, Callable[[], list[list[Stamp]]]]]:
    """Run a server; give its URL, and what ends it and returns the stamps of all batches."""
    command = [sys.executable, "-m", __name__, store]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def stop() -> list[list[Stamp]]:
            calls, _ = process.communicate("")
            return _batches([(piece, moment) for piece, moment in json.loads(calls)])

        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", stop
        finally:
            process.kill()


DECODED = "server: decode"
WRITES = "server: encode the answer"
RETURNS = "server: write the answer, while the client reads it"
LOGS = "server: count and log the request, meanwhile"
AFTER = (RETURNS, LOGS)
"""What the server does while the client has its answer already."""


def _server_stamps() -> Stamps:
    stamps = Stamps()
    stamps.watch(Connection, "data_received", before="network, server: event loop")
    stamps.watch(ServerApp, "__call__", before="server: parse the head")
    stamps.watch(app, "_let_in", before="server: route", after="server: authenticate, admit")
    stamps.watch(batch, "unpack", before="server: read the body", after=DECODED)
    stamps.watch(Batches, "execute", before="server: check the command, quotas")
    stamps.watch(Executor, "_ask", before="server: to the lane's thread", after="store")
    stamps.watch(app, "_send", before="server: back from the lane's thread, reply")
    stamps.watch(Connection, "write", before=WRITES, after=RETURNS)
    stamps.watch(app, "log_request", after=LOGS)
    return stamps


def main() -> None:
    """Serve until standard input ends; print the stamps."""
    stamps = _server_stamps()
    configure(as_json=True, level="info")
    settings = Settings(store=sys.argv[1], port=0)
    listening = bind(settings)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = HttpServer(ServerApp(settings, ready=ready))

        def wait() -> None:
            sys.stdin.read()
            loop.call_soon_threadsafe(server.stop)

        threading.Thread(target=wait, daemon=True).start()
        await server.serve(listening)

    def ready() -> None:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()

    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        loop.run(serve())
    stamps.finish()
    sys.stdout.write(json.dumps(stamps.calls[0]))


if __name__ == "__main__":
    main()
