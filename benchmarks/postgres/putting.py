"""How fast messages go in, beside inserts into a plain table."""

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial

import bide
from benchmarks.core.store import BODY
from benchmarks.figure import Figure, paired
from benchmarks.postgres.store import BATCH, Raw, store
from benchmarks.redis.store import per_second
from tests.postgres_server import PostgresServer

__all__ = ["MEASUREMENTS"]

PROCESSES = 16


def put_many() -> Iterator[Figure]:
    """Five hundred messages a commit."""
    count = 10_000
    with store() as (queue, server):
        raw = Raw(server)
        message = bide.NewMessage(body=BODY, delay=3_600)

        def ours() -> None:
            for _ in range(count // BATCH):
                queue.put_many([message] * BATCH)

        def base() -> None:
            for _ in range(count // BATCH):
                raw.insert(BATCH)

        ours()
        base()
        value, limit, ratio = paired(
            7, lambda: per_second(count, ours), lambda: per_second(count, base)
        )
        raw.connection.close()
    yield Figure(
        f"put_many({BATCH})", value, "/s", limit, ratio, "60 % of INSERT ... unnest", ratio >= 0.6
    )


def put_one() -> Iterator[Figure]:
    """One caller, one message a commit; and the same within a transaction that inserts an order."""
    count = 400
    with store() as (queue, server):
        raw = Raw(server)
        with server.client() as shop:
            shop.execute("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")

            def ordered() -> None:
                for _ in range(count):
                    with shop.transaction():
                        shop.execute("INSERT INTO orders DEFAULT VALUES")
                        shop.execute(
                            "SELECT bide.put('work', %s::json, delay => '1 hour')", ('"order"',)
                        )

            def ordered_within() -> None:
                for _ in range(count):
                    with shop.transaction():
                        shop.execute("INSERT INTO orders DEFAULT VALUES")
                        queue.put("order", delay="1h", within=shop)

            def ordered_at_once() -> None:
                for _ in range(count):
                    shop.execute(
                        "WITH new AS (INSERT INTO orders DEFAULT VALUES RETURNING id) "
                        "SELECT bide.put('work', json_build_object('order', id), "
                        "delay => '1 hour') FROM new"
                    )

            def ours() -> None:
                for _ in range(count):
                    queue.put(BODY, delay="1h")

            def base() -> None:
                for _ in range(count):
                    raw.insert_one()

            def base_in_transactions() -> None:
                for _ in range(count):
                    with raw.connection.transaction():
                        raw.insert_one()

            both = {
                "bide.put() in one transaction": (ordered, base_in_transactions),
                "put(within=) in one transaction": (ordered_within, base_in_transactions),
                "bide.put() in one statement": (ordered_at_once, base),
            }
            for warm in (ours, *itertools.chain(*both.values())):
                warm()
            value, limit, ratio = paired(
                9, lambda: per_second(count, ours), lambda: per_second(count, base)
            )
            yield Figure(
                "put, one sync caller",
                value,
                "/s",
                limit,
                ratio,
                "75 % of a raw insert",
                ratio >= 0.75,
            )
            for how, (put, insert) in both.items():
                value, limit, ratio = paired(
                    9, partial(per_second, count, put), partial(per_second, count, insert)
                )
                yield Figure(
                    f"an order and {how}",
                    value,
                    "/s",
                    limit,
                    ratio,
                    "at most 2 raw inserts, committed the same way",
                    ratio >= 0.5,
                )
        raw.connection.close()


def put_async() -> Iterator[Figure]:
    """Sixty-four tasks, each putting one message at a time."""
    tasks, each = 64, 150
    with store() as (_, server):

        async def run() -> float:
            async with bide.AsyncQueue("work", server.url) as work:
                await work.put(BODY, delay="1h")

                async def produce() -> None:
                    for _ in range(each):
                        await work.put(BODY, delay="1h")

                start = time.perf_counter()
                await asyncio.gather(*(produce() for _ in range(tasks)))
                return tasks * each / (time.perf_counter() - start)

        value = sorted(asyncio.run(run()) for _ in range(5))[2]
    yield Figure("put, 64 async tasks", value, "/s", goal="25 k/s", met=value >= 25_000)


def put_processes() -> Iterator[Figure]:
    """Sixteen processes, each putting one message at a time."""
    with store() as (_, server):
        Raw(server).connection.close()
        value, limit, ratio = paired(
            3, lambda: _crowd(_put, server), lambda: _crowd(_insert, server)
        )
    yield Figure(
        f"put, {PROCESSES} processes",
        value,
        "/s",
        limit,
        ratio,
        "70 % of raw inserts",
        ratio >= 0.7,
    )


EACH = 150


def _crowd(work: Callable[..., None], server: PostgresServer) -> float:
    context = multiprocessing.get_context("fork")
    begin, end = context.Barrier(PROCESSES + 1), context.Barrier(PROCESSES + 1)
    crowd = [
        context.Process(target=work, args=(server, begin, end), daemon=True)
        for _ in range(PROCESSES)
    ]
    for process in crowd:
        process.start()
    begin.wait(60)
    start = time.perf_counter()
    end.wait(60)
    seconds = time.perf_counter() - start
    for process in crowd:
        process.join()
    return PROCESSES * EACH / seconds


def _put(server: PostgresServer, begin: object, end: object) -> None:
    with bide.Queue("work", server.url) as queue:
        queue.put(BODY, delay="1h")
        _together(lambda: queue.put(BODY, delay="1h"), begin, end)


def _insert(server: PostgresServer, begin: object, end: object) -> None:
    raw = object.__new__(Raw)  # the table is there
    raw.connection = server.client()
    raw.insert_one()
    _together(raw.insert_one, begin, end)


def _together(work: Callable[[], object], begin: object, end: object) -> None:
    begin.wait(60)  # type: ignore[attr-defined]
    for _ in range(EACH):
        work()
    end.wait(60)  # type: ignore[attr-defined]


MEASUREMENTS = (put_many, put_one, put_async, put_processes)
