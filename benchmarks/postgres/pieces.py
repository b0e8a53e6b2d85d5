"""Where lone calls on PostgreSQL spend their time, from the client's call to its result."""

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.postgres.store import Raw
from benchmarks.stamps import Stamps, pieces
from bide.engines.postgres.connection import PostgresCaller
from bide.engines.postgres.engine import PostgresEngine
from tests.postgres_server import PostgresServer, new_folder

__all__ = ["MEASUREMENTS"]

CALLS = 700
WARM = 100
ANSWERED = "the server, and the way there and back"


def lone_calls() -> Iterator[Figure]:
    """Name each piece of one put, get and cancel after the other, beside raw statements."""
    with new_folder() as folder:
        server = PostgresServer(folder, fsync="off")
        try:
            with bide.Queue("lone", server.url) as queue:
                yield from _of_queue(queue, server)
        finally:
            server.stop()


def _of_queue(queue: bide.Queue, server: PostgresServer) -> Iterator[Figure]:
    raw = Raw(server)
    numbers = count()

    def round_trip() -> None:
        raw.connection.pgconn.exec_(b"SELECT 1")

    def select() -> None:
        query = "SELECT * FROM raw WHERE id = %s"
        raw.connection.execute(query, (str(next(numbers)),), prepare=True)

    def delete() -> None:
        query = "DELETE FROM raw WHERE id = %s"
        raw.connection.execute(query, (str(next(numbers)),), prepare=True)

    calls: dict[str, tuple[Callable[[str], object], Callable[[], None]]] = {
        "put": (lambda id: queue.put(BODY, id=id, delay="1h"), raw.insert_one),
        "get": (queue.get, select),
        "cancel": (queue.cancel, delete),
    }
    ids = [f"m{number}" for number in range(CALLS)]
    raw.connection.execute(
        "INSERT INTO raw (id) SELECT n FROM generate_series(0, %s) AS n", (2 * CALLS,)
    )
    stamps = _stamps()
    for name, (call, statement) in calls.items():
        raw_times, trips = [], []
        stamps.calls.clear()
        for id in ids:
            stamps.mark("begin")
            call(id)
            stamps.mark("client: result of the reply")
            stamps.finish()
            raw_times.append(_microseconds(statement))
            trips.append(_microseconds(round_trip))
        own = stamps.calls[WARM:]
        whole = statistics.median((call[-1][1] - call[0][1]) * 1e6 for call in own)
        yield Figure(f"one {name}", whole, "µs", statistics.median(raw_times[WARM:]))
        trip = statistics.median(trips[WARM:])
        for piece, value in pieces(own).items():
            if piece != ANSWERED:
                yield Figure(f"{name}, {piece}", value, "µs")
                continue
            yield Figure(f"{name}, a round trip (SELECT 1)", trip, "µs")
            yield Figure(f"{name}, the function in the server", value - trip, "µs")


def _microseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def _stamps() -> Stamps:
    stamps = Stamps()
    stamps.watch(PostgresEngine, "execute", before="client: command, lane", after="client: reply")
    stamps.watch(PostgresCaller, "start", before="client: arguments")
    stamps.watch(PostgresCaller, "_answer", after=ANSWERED)
    return stamps


MEASUREMENTS = (lone_calls,)
