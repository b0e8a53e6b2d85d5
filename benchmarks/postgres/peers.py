"""The same work by other queues on PostgreSQL, if they are installed.

`pip install --group bench`. Each puts messages that are due, and one worker handles them with
handlers that do nothing, on a server of its own. Each is set up as its documentation proposes, with
64 handlers at a time. Rates of puts are medians of five parts, because a put of one is short.
"""

import asyncio
import importlib.util
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.postgres.store import BATCH, fill, store
from benchmarks.redis.store import other, per_second

__all__ = ["MEASUREMENTS"]

COUNT = 5_000
SINGLE = 1_000
PARTS = 5
HANDLERS = 64

Rates = tuple[float, float, float]
"""Messages a second: put 500 at a time, put one by one, handled by one worker."""


async def _timed(count: int, work: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await work()
    return count / (time.perf_counter() - begin)


async def _median(count: int, put: Callable[[], Awaitable[object]], at_once: int = 1) -> float:
    """Return the median rate of the parts, each of which puts a fifth of the messages."""

    async def part() -> None:
        for _ in range(count // PARTS // at_once):
            await put()

    return statistics.median([await _timed(count // PARTS, part) for _ in range(PARTS)])


def _bide() -> Rates:
    with store() as (queue, server):
        part, singles = COUNT // PARTS, range(SINGLE // PARTS)
        many = [per_second(part, lambda: fill(queue, part, 0)) for _ in range(PARTS)]
        with other("work", server.url, COUNT) as result:
            handled = result()
        one = [
            per_second(len(singles), lambda: [queue.put(BODY) for _ in singles])
            for _ in range(PARTS)
        ]
    return statistics.median(many), statistics.median(one), handled


async def _procrastinate(url: str) -> Rates:
    import procrastinate

    done = asyncio.Event()
    count = 0
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(queue="work", name="nothing")  # type: ignore[untyped-decorator]
    async def nothing(body: str) -> None:
        nonlocal count
        count += 1
        if count >= COUNT:
            done.set()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        async def put_many() -> None:
            await nothing.batch_defer_async(*[{"body": BODY} for _ in range(BATCH)])

        async def put_one() -> None:
            await nothing.defer_async(body=BODY)

        async def handle() -> None:
            worker = asyncio.create_task(
                app.run_worker_async(concurrency=HANDLERS, wait=True, install_signal_handlers=False)
            )
            await done.wait()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

        many = await _median(COUNT, put_many, BATCH)
        handled = await _timed(COUNT, handle)
        return many, await _median(SINGLE, put_one), handled


async def _pgqueuer(url: str) -> Rates:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.models import Job
    from pgqueuer.queries import Queries

    host = url.partition("host=")[2]
    connection = await asyncpg.connect(user="bide", database="postgres", host=host)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    queue = PgQueuer(driver)
    count = 0

    @queue.entrypoint("nothing")  # type: ignore[untyped-decorator]
    async def nothing(job: Job) -> None:
        nonlocal count
        count += 1
        if count >= COUNT:
            queue.shutdown.set()

    body = BODY.encode()

    async def put_many() -> None:
        await queries.enqueue(["nothing"] * BATCH, [body] * BATCH, [0] * BATCH)

    async def put_one() -> None:
        await queries.enqueue("nothing", body)

    many = await _median(COUNT, put_many, BATCH)
    handled = await _timed(COUNT, lambda: queue.run(batch_size=100))
    one = await _median(SINGLE, put_one)
    await connection.close()
    return many, one, handled


@dataclass
class Nothing:
    """The arguments of a job of awa."""

    body: str


async def _awa(url: str) -> Rates:
    from awa import AsyncClient

    done = asyncio.Event()
    count = 0
    client = AsyncClient(url.replace("bide@/", "bide@localhost/"))
    await client.migrate()
    await client.install_queue_storage(schema="awa")  # its faster tables
    job = Nothing(BODY)

    @client.task(Nothing, queue="work")  # type: ignore[untyped-decorator]
    async def nothing(job: object) -> None:
        nonlocal count
        count += 1
        if count >= COUNT:
            done.set()

    async def put_many() -> None:
        await client.enqueue_many_copy([job] * BATCH, queue="work")

    async def put_one() -> None:
        await client.insert(job, queue="work")

    async def handle() -> None:
        await client.start([("work", HANDLERS)])
        await done.wait()

    many = await _median(COUNT, put_many, BATCH)
    handled = await _timed(COUNT, handle)
    await client.shutdown()
    one = await _median(SINGLE, put_one)
    await client.close()
    return many, one, handled


def peers() -> Iterator[Figure]:
    """Bide first, then whoever is installed."""
    rates = {"bide": _bide()}
    others = (("procrastinate", _procrastinate), ("pgqueuer", _pgqueuer), ("awa", _awa))
    for name, measure in others:
        if importlib.util.find_spec(name) is not None:
            with store() as (_, server):
                rates[name] = asyncio.run(measure(server.url))
    for index, work in enumerate(("put 500 at a time", "put one by one", "one worker handles")):
        for name, found in rates.items():
            ours = rates["bide"][index]
            yield Figure(
                f"{work}: {name}",
                found[index],
                "/s",
                goal="" if name == "bide" else "less than bide",
                met=None if name == "bide" else ours > found[index],
            )


MEASUREMENTS = (peers,)
