"""The same work by other queues on PostgreSQL, if they are installed.

`pip install --group bench`. Each puts messages that are due, and one worker handles them with
handlers that do nothing, on a server of its own. Each is set up as its documentation proposes, with
64 handlers at a time.
"""

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from benchmarks.core.store import BODY
from benchmarks.figure import Figure
from benchmarks.postgres.store import BATCH, fill, store
from benchmarks.redis.store import other, per_second

__all__ = ["MEASUREMENTS"]

COUNT = 5_000
SINGLE = 300
HANDLERS = 64

Rates = tuple[float, float, float]
"""Messages a second: put 500 at a time, put one by one, handled by one worker."""


async def _timed(count: int, work: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await work()
    return count / (time.perf_counter() - begin)


def _bide() -> Rates:
    with store() as (queue, server):
        many = per_second(COUNT, lambda: fill(queue, COUNT, 0))
        with other("work", server.url, COUNT) as result:
            handled = result()
        one = per_second(SINGLE, lambda: [queue.put(BODY) for _ in range(SINGLE)])
    return many, one, handled


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
            for _ in range(COUNT // BATCH):
                await nothing.batch_defer_async(*[{"body": BODY} for _ in range(BATCH)])

        async def put_one() -> None:
            for _ in range(SINGLE):
                await nothing.defer_async(body=BODY)

        async def handle() -> None:
            worker = asyncio.create_task(app.run_worker_async(
                concurrency=HANDLERS, wait=True, install_signal_handlers=False
            ))  # fmt: skip
            await done.wait()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

        many = await _timed(COUNT, put_many)
        handled = await _timed(COUNT, handle)
        return many, await _timed(SINGLE, put_one), handled


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
        for _ in range(COUNT // BATCH):
            await queries.enqueue(["nothing"] * BATCH, [body] * BATCH, [0] * BATCH)

    async def put_one() -> None:
        for _ in range(SINGLE):
            await queries.enqueue("nothing", body)

    many = await _timed(COUNT, put_many)
    handled = await _timed(COUNT, lambda: queue.run(batch_size=100))
    one = await _timed(SINGLE, put_one)
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
        for _ in range(COUNT // BATCH):
            await client.enqueue_many_copy([job] * BATCH, queue="work")

    async def put_one() -> None:
        for _ in range(SINGLE):
            await client.insert(job, queue="work")

    async def handle() -> None:
        await client.start([("work", HANDLERS)])
        await done.wait()

    many = await _timed(COUNT, put_many)
    handled = await _timed(COUNT, handle)
    await client.shutdown()
    one = await _timed(SINGLE, put_one)
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
                f"{work}: {name}", found[index], "/s",
                goal="" if name == "bide" else "less than bide",
                met=None if name == "bide" else ours > found[index],
            )  # fmt: skip


MEASUREMENTS = (peers,)
