"""Handlers whose effect and ack are committed together, on real databases."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

import bide
from tests.effort import effort, one_in
from tests.soak import once
from tests.system.within.libraries import libpq, sqlalchemy_url, sqlite_url
from tests.waiting import until

AT_ONCE = bide.Backoff(attempts=5, first="1ms", ceiling="1ms", jitter=0)


class Shop:
    """A store, and a table of effects in the same database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = bide.App(url)
        driver = "" if url.startswith("sqlite") else "+psycopg"
        self.engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        self.queue = bide.Queue("q", url, result_ttl="1h", history="1h")
        self.queue.resume()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effect (id text)"))

    def asynchronous(self) -> AsyncEngine:
        driver = "+aiosqlite" if self.url.startswith("sqlite") else "+asyncpg"
        return create_async_engine(sqlalchemy_url(self.url, driver), poolclass=NullPool)

    @property
    def effects(self) -> list[str]:
        with self.engine.begin() as connection:
            return sorted(id for (id,) in connection.execute(text("SELECT id FROM effect")))

    def close(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("DROP TABLE effect"))
        self.engine.dispose()
        assert self.queue.audit()
        self.queue.close()
        self.app.close()


@pytest.fixture(params=["postgresql", "sqlite"])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_url: Callable[[], str]
) -> Iterator[Shop]:
    shop = Shop(postgres_url() if request.param == "postgresql" else sqlite_url(tmp_path))
    yield shop
    shop.close()


@pytest.fixture
def server(postgres_url: Callable[[], str]) -> Iterator[Shop]:
    shop = Shop(postgres_url())
    yield shop
    shop.close()


INSERT = text("INSERT INTO effect VALUES (:id)")


@contextmanager
def at_work(shop: Shop) -> Iterator[None]:
    """Run the worker in a thread, so that the test may use its blocking queue."""
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def work() -> None:
        end = asyncio.Event()
        async with shop.app.running():
            began.set_result((asyncio.get_running_loop(), end))
            await end.wait()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(asyncio.run, work())
        loop, end = began.result(60)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(end.set)
            working.result(60)


def play(shop: Shop, *conditions: Callable[[], object]) -> None:
    """Run the worker until the conditions hold, one after the other."""
    with at_work(shop):
        for condition in conditions:
            until(condition)


def test_a_plain_handler_is_acked_in_its_transaction(shop: Shop) -> None:
    failed = []

    @shop.app.handler("q", within=shop.engine.begin, retry=AT_ONCE)
    def handle(body: str, within: sqlalchemy.Connection) -> str:
        within.execute(INSERT, {"id": body})
        if body not in failed:
            failed.append(body)
            raise ValueError("the first attempt fails, after its effect")
        return f"done {body}"

    shop.queue.put_many([bide.NewMessage(id, id=id) for id in "abc"])
    play(shop, lambda: shop.queue.counts().flow.acked == 3)
    assert shop.effects == ["a", "b", "c"]
    assert shop.queue.counts().flow.retried == 3
    assert shop.queue.result("b") == "done b"


def test_an_async_handler_is_acked_in_its_transaction(shop: Shop) -> None:
    failed = []
    engine = shop.asynchronous()

    @shop.app.handler("q", within=engine.begin, retry=AT_ONCE, concurrency=4)
    async def handle(body: str, delivery: bide.Delivery, *, within: AsyncConnection) -> None:
        await within.execute(INSERT, {"id": delivery.id})
        if body not in failed:
            failed.append(body)
            raise ValueError("the first attempt fails, after its effect")

    shop.queue.put_many([bide.NewMessage(id, id=id) for id in "abc"])
    play(shop, lambda: shop.queue.counts().flow.acked == 3)
    assert shop.effects == ["a", "b", "c"]


def test_a_task_takes_the_connection_beside_its_arguments(shop: Shop) -> None:
    @shop.app.task(queue="q", within=shop.engine.begin)
    def note(id: str, *, twice: bool = False, within: sqlalchemy.Connection | None = None) -> None:
        assert within is not None
        within.execute(INSERT, {"id": id * (1 + twice)})

    @shop.app.task(queue="q", within=shop.engine.begin)
    def nothing() -> None: ...

    note.put("a")
    note.put("b", twice=True)
    nothing.put()
    with pytest.raises(bide.InvalidArgument, match="gets within= from its worker"):
        note.put("c", within=None)
    play(shop, lambda: shop.queue.counts().flow.acked == 3)
    assert shop.effects == ["a", "bb"]
    assert str(note.parameters) == "(id: str, *, twice: bool = False)"


def test_who_has_lost_the_lease_has_no_effect(shop: Shop) -> None:
    runs: list[str] = []

    @shop.app.handler("q", within=shop.engine.begin)
    def handle(body: str, within: sqlalchemy.Connection) -> None:
        runs.append(body)
        if len(runs) == 1:
            shop.queue.release(body)
        within.execute(INSERT, {"id": body})

    shop.queue.put("a", id="a")
    play(shop, lambda: shop.queue.counts().flow.acked == 1)
    assert (len(runs), shop.effects) == (2, ["a"])


def test_a_handler_may_settle_its_delivery_by_itself(shop: Shop) -> None:
    @shop.app.handler("q", retry=AT_ONCE)
    def handle(body: str, delivery: bide.Delivery) -> None:
        with shop.engine.begin() as connection:
            connection.execute(INSERT, {"id": body})
            if body == "dead":
                delivery.bury("it has an effect all the same", within=connection)
            elif body == "again" and delivery.attempt == 1:
                delivery.retry("1ms", within=connection)
            else:
                delivery.ack(within=connection)
        if body == "raises":
            raise ValueError("after the commit")

    shop.queue.put_many([bide.NewMessage(id, id=id) for id in ("again", "dead", "ok", "raises")])

    def settled() -> bool:
        counts = shop.queue.counts()
        return (counts.flow.acked, counts.sizes.dead, counts.sizes.total) == (3, 1, 1)

    play(shop, settled)
    assert shop.effects == ["again", "again", "dead", "ok", "raises"]


def test_an_async_handler_may_settle_its_delivery_by_itself(shop: Shop) -> None:
    engine = shop.asynchronous()

    @shop.app.handler("q", concurrency=1)
    async def handle(body: str, delivery: bide.AsyncDelivery) -> None:
        async with engine.begin() as connection:
            await connection.execute(INSERT, {"id": body})
            if body == "dead":
                await delivery.bury("no", within=connection)
            else:
                await delivery.ack({"id": body}, within=connection)

    shop.queue.put_many([bide.NewMessage(id, id=id) for id in ("dead", "ok")])
    play(shop, lambda: shop.queue.counts().sizes.dead == shop.queue.counts().flow.acked == 1)
    assert shop.effects == ["dead", "ok"]
    assert shop.queue.result("ok") == {"id": "ok"}


def test_what_a_savepoint_takes_back_is_settled_at_the_end(shop: Shop) -> None:
    @shop.app.handler("q", within=shop.engine.begin, retry=AT_ONCE)
    def handle(body: str, delivery: bide.Delivery, *, within: sqlalchemy.Connection) -> None:
        within.execute(INSERT, {"id": body})
        savepoint = within.begin_nested()
        match body:
            case "bury":
                delivery.bury("no", within=within)
            case "retry" if delivery.attempt == 1:
                delivery.retry("1ms", within=within)
            case _:
                delivery.ack(within=within)
        if body == "taken back":
            savepoint.rollback()
        else:
            savepoint.commit()

    names = ("kept", "taken back", "bury", "retry")
    shop.queue.put_many([bide.NewMessage(id, id=id) for id in names])

    def settled() -> bool:
        counts = shop.queue.counts()
        return (counts.flow.acked, counts.sizes.dead, counts.sizes.total) == (3, 1, 1)

    play(shop, settled)
    assert shop.effects == ["bury", "kept", "retry", "retry", "taken back"]


def test_the_connection_comes_last_or_by_name() -> None:
    app = bide.App("sqlite:///never.db")

    def handle(body: str, within: object, delivery: bide.Delivery) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="takes within before delivery; write it last"):
        app.handler("q", within=nullcontext)(handle)


def test_what_settles_without_a_transaction_is_refused(shop: Shop) -> None:
    refusals = []

    @shop.app.handler("q")
    def handle(delivery: bide.Delivery) -> None:
        for settle in (delivery.ack, delivery.retry, delivery.bury, delivery.release):
            with pytest.raises(bide.Unsupported, match=r"ack\(within=connection\)") as refused:
                settle()
            refusals.append(refused)

    shop.queue.put(1)
    play(shop, lambda: shop.queue.counts().flow.acked == 1)
    assert len(refusals) == 4


def test_a_transaction_that_is_rolled_back_lets_the_lease_end_by_itself(shop: Shop) -> None:
    attempts = []

    @shop.app.handler("q", lease="1s", retry=AT_ONCE)
    def handle(body: str, delivery: bide.Delivery) -> None:
        attempts.append(delivery.attempt)
        with shop.engine.connect() as connection:
            connection.execute(INSERT, {"id": body})
            delivery.ack(within=connection)
            if delivery.attempt > 1:
                connection.commit()  # the first time it is forgotten

    shop.queue.put("a")
    play(shop, lambda: shop.queue.counts().flow.acked == 1)
    assert (attempts[:2], shop.effects) == ([1, 2], ["a"])
    assert shop.queue.counts().flow.lapsed >= 1


def test_a_transaction_that_stays_open_delays_no_neighbour(server: Shop) -> None:
    """It stays open for many leases, by the time that its neighbours tell."""
    gate, acked = threading.Event(), threading.Event()
    handled: list[str] = []

    @server.app.handler("q", lease="3s", concurrency=8)
    def handle(body: str, delivery: bide.Delivery) -> None:
        if body == "open":
            with server.engine.begin() as connection:
                connection.execute(INSERT, {"id": body})
                delivery.ack(within=connection)
                acked.set()
                assert gate.wait(90)
        elif body == "long":
            assert gate.wait(90)
        handled.append(body)

    with at_work(server):
        server.queue.put("open", id="open")
        until(acked.is_set)
        server.queue.put("long", id="long")
        until(lambda: getattr(server.queue.get("long"), "state", "") == "leased")
        for number in range(4):  # more than a lease altogether
            name = f"n{number}"
            server.queue.put(name, delay="1s")
            until(partial(handled.__contains__, name))
        assert server.queue.cancel("open").state == "settling"
        assert server.queue.counts().flow.lapsed == 0
        gate.set()
        until(lambda: server.queue.counts().flow.acked == 6)

    assert server.effects == ["open"]
    assert sorted(handled) == sorted(["open", "long", *(f"n{number}" for number in range(4))])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_above_read_committed_a_message_takes_effect_once(server: Shop, level: str) -> None:
    """Their leases are long, so that none is extended; what cannot be serialized is retried."""
    engine = server.engine.execution_options(isolation_level=level)
    retry = bide.Backoff(attempts=1_000, first="1ms", ceiling="5ms")

    @server.app.handler("q", within=engine.begin, lease="1h", retry=retry, concurrency=4)
    def handle(body: str, within: sqlalchemy.Connection) -> None:
        within.execute(INSERT, {"id": body})

    ids = [f"m{number:02}" for number in range(40)]
    server.queue.put_many([bide.NewMessage(id, id=id, attempts=1_000) for id in ids])
    play(server, lambda: server.queue.counts().flow.acked == 40)
    assert server.effects == ids


@pytest.mark.process
@pytest.mark.parametrize("kind", one_in(2, ["postgresql", "sqlite"]))
def test_processes_that_die_around_the_commit_leave_one_effect_for_each_message(
    kind: str, tmp_path: Path, postgres_url: Callable[[], str]
) -> None:
    url = postgres_url() if kind == "postgresql" else sqlite_url(tmp_path)
    result = once.run(url, effort(100, 3_000), every=effort(20, 40))
    assert result.problems == []
    assert result.deaths >= 2


def test_psycopg_and_its_async_connections_open_transactions(server: Shop) -> None:
    @contextmanager
    def plain() -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(libpq(server.url)) as connection:
            yield connection

    @asynccontextmanager
    async def asynchronous() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with await psycopg.AsyncConnection.connect(libpq(server.url)) as connection:
            yield connection

    @server.app.handler("q", within=plain)
    def handle(body: str, within: psycopg.Connection[Any]) -> None:
        within.execute("INSERT INTO effect VALUES (%s)", (body,))

    @server.app.handler("other", within=asynchronous)
    async def handle_other(body: str, within: psycopg.AsyncConnection[Any]) -> None:
        await within.execute("INSERT INTO effect VALUES (%s)", (body,))

    server.queue.put("a")
    with bide.Queue("other", server.url) as other:
        other.put("b")
        play(
            server,
            lambda: server.queue.counts().flow.acked == 1,
            lambda: other.counts().flow.acked == 1,
        )
    assert server.effects == ["a", "b"]


def test_what_cannot_open_a_transaction_is_refused() -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match="must be a function that opens a transaction"):
        app.handler("q", within="engine.begin")(lambda body: None)  # type: ignore[arg-type]
    with pytest.raises(bide.InvalidArgument, match=r"has batch= and within="):

        @app.handler("q", within=lambda: threading.Lock(), batch=10)
        def many(bodies: list[str]) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="only a worker gives it"):

        @app.task(within=lambda: threading.Lock())
        def call(within: object) -> None: ...


def test_a_handler_whose_transaction_is_none_fails_with_the_fix(shop: Shop) -> None:
    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    once = bide.Backoff(attempts=1)
    shop.app.handler("q", within=nothing, retry=once)(lambda body: None)

    @shop.app.handler("other", within=shop.engine.begin, retry=once)
    async def handle(body: str) -> None: ...

    shop.queue.put(1, id="a")
    with bide.Queue("other", shop.url) as other:
        other.put(1, id="a")
        play(
            shop,
            lambda: shop.queue.counts().sizes.dead == 1,
            lambda: other.counts().sizes.dead == 1,
        )
        (wrong,) = other.dead()
    (dead,) = shop.queue.dead()
    assert "yields nothing; it must yield the connection" in dead.failures[0].reason
    assert "a context manager that `async with` takes" in wrong.failures[0].reason


@pytest.mark.parametrize("is_async", [False, True])
def test_a_transaction_that_swallows_an_error_fails_with_the_cause(
    shop: Shop, is_async: bool
) -> None:
    @contextmanager
    def plain() -> Iterator[sqlalchemy.Connection]:
        with suppress(ZeroDivisionError), shop.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def asynchronous() -> AsyncIterator[sqlalchemy.Connection]:
        with plain() as connection:
            yield connection

    def handle(body: str, within: sqlalchemy.Connection) -> None:
        raise ZeroDivisionError("rolled back")

    async def handle_async(body: str, within: sqlalchemy.Connection) -> None:
        handle(body, within)

    once = bide.Backoff(attempts=1)
    if is_async:
        shop.app.handler("q", within=asynchronous, retry=once)(handle_async)
    else:
        shop.app.handler("q", within=plain, retry=once)(handle)
    shop.queue.put("a")
    play(shop, lambda: shop.queue.counts().sizes.dead == 1)
    (dead,) = shop.queue.dead()
    assert "has swallowed the ZeroDivisionError of its handler" in dead.failures[0].reason
    assert "rolled back" in dead.failures[0].reason
