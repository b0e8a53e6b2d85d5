"""Within a transaction: locks, isolation, rights, waking, and a process that is killed."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import bide
from bide.testing.hooks import url_of
from tests.postgres_server import BOUND, PostgresServer, until
from tests.system.within.libraries import file_of, libpq, sqlite_url


@pytest.fixture
def orders(postgres_url: Callable[[], str]) -> Iterator[bide.Queue]:
    with bide.Queue("orders", postgres_url()) as orders:
        orders.resume()  # makes the queue
        yield orders
        assert orders.audit()


@pytest.fixture
def shop(orders: bide.Queue) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(libpq(url_of(orders)))) as connection:
        yield connection


def test_what_another_transaction_is_changing_is_busy_and_the_transaction_goes_on(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    orders.put(1, id="a", delay=60)
    with closing(psycopg.connect(libpq(url_of(orders)))) as other:
        assert orders.cancel("a", within=other)
        assert orders.put(1, id="b", within=other)
        assert orders.put(1, id="mine", within=shop)
        with pytest.raises(bide.StoreBusy, match="Your transaction goes on"):
            orders.cancel("a", within=shop)
        with pytest.raises(bide.StoreBusy, match="Your transaction goes on"):
            orders.put(2, id="b", within=shop)
        other.rollback()
        assert orders.cancel("a", within=shop)
        shop.commit()
    assert [message.id for message in orders.scan()] == ["mine"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "READ UNCOMMITTED"])
def test_what_another_transaction_put_meanwhile_is_busy_at_the_lower_levels(
    orders: bide.Queue, shop: psycopg.Connection[Any], level: str
) -> None:
    """The server treats them alike."""
    schema = parse_qs(urlsplit(url_of(orders)).query)["schema"][0]
    shop.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    refused = shop.execute(f"SET search_path = {schema}; SELECT _refused('40001', '')".encode())
    assert refused.nextset()
    assert refused.fetchone() == ({"refused": "busy"},)


def test_a_serialization_failure_is_the_drivers(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    """Programs that work at these levels try again at this error; it must not be hidden."""
    orders.put(1, id="a", delay=60)
    shop.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    shop.execute("SELECT 1")
    orders.reschedule("a", delay=90)
    with pytest.raises(psycopg.errors.SerializationFailure):
        orders.cancel("a", within=shop)
    shop.rollback()
    assert orders.cancel("a", within=shop)
    shop.commit()


@pytest.mark.parametrize("count", [1, 3])
def test_a_queue_that_was_deleted_since_the_transaction_began_takes_no_message(
    orders: bide.Queue, shop: psycopg.Connection[Any], count: int
) -> None:
    """The transaction still sees the queue: the message would be in none."""
    shop.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    shop.execute("SELECT 1")
    assert orders.delete()
    with pytest.raises(psycopg.errors.SerializationFailure):
        orders.put_many(range(count), within=shop)
    shop.rollback()
    assert len(orders.put_many(range(count), within=shop)) == count
    shop.commit()
    assert orders.counts().sizes.total == count


def test_a_put_at_repeatable_read_goes_the_short_way(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    """It takes half of the time."""
    schema = parse_qs(urlsplit(url_of(orders)).query)["schema"][0]
    shop.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    put = "_put_one('orders', 1, 'a', true, '1', NULL, 0, 0, 10, NULL, NULL, NULL)"
    assert shop.execute(f"SELECT {schema}.{put}".encode()).fetchone() == (1,)
    shop.commit()
    assert orders.get("a") is not None


def test_a_put_at_repeatable_read_holds_up_no_change_of_its_queue(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    shop.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    shop.execute("SELECT 1")
    orders.pause()
    assert orders.put(1, id="a", within=shop)
    orders.resume()
    orders.put(2, id="b", priority=9)
    with bide.Queue("orders", url_of(orders), limit=1) as limited:
        assert limited.claim(lease=60)[0].message.id == "b"
    shop.commit()
    assert orders.get("a") is not None


def test_settings_are_sent_once_before_the_transaction_goes_on(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    with (
        bide.Queue("calls", url_of(orders), limit=5, keep="1d") as calls,
        bide.Queue("calls", url_of(orders)) as operator,
        closing(psycopg.connect(libpq(url_of(orders)))) as other,
    ):
        assert calls.put(1, id="a", within=shop)
        assert operator.counts().limit == 5
        assert operator.put(2, id="b", priority=9, within=other)  # the row of the queue is free
        other.commit()
        shop.rollback()
        operator.configure(limit=50, keep=0)
        assert calls.put(1, id="a", within=shop)
        shop.commit()
        counts = operator.counts()
        assert (counts.limit, counts.keep, counts.flow.put) == (50, 0, 2)


def test_async_settings_are_sent_before_the_transaction_goes_on(orders: bide.Queue) -> None:
    async def main(url: str) -> None:
        async with (
            bide.AsyncQueue("calls", url, limit=5) as calls,
            await psycopg.AsyncConnection.connect(libpq(url)) as shop,
        ):
            assert await calls.put(1, within=shop)
            await shop.rollback()
            assert (await calls.counts()).limit == 5
            async with bide.AsyncQueue("calls", url) as operator:
                await operator.configure(limit=50)
            assert await calls.put(1, within=shop)
            await shop.commit()
            assert (await calls.counts()).limit == 50

    asyncio.run(main(url_of(orders)))


def test_settings_join_a_transaction_that_has_made_the_queue(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    with (
        bide.Queue("calls", url_of(orders)) as plain,
        bide.Queue("calls", url_of(orders), limit=5) as limited,
    ):
        assert plain.put(1, within=shop)
        assert limited.put(2, within=shop)
        shop.commit()
        assert plain.counts().limit == 5


def test_a_first_put_into_a_queue_keeps_its_time(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    with bide.Queue("new", url_of(orders)) as new:
        assert new.put(1, id="a", at=2_000_000_000, within=shop)
        shop.commit()
        message = new.get("a")
        assert message is not None
        assert message.due == 2_000_000_000_000


def test_a_user_without_rights(
    orders: bide.Queue, shop: psycopg.Connection[Any], postgres: PostgresServer
) -> None:
    schema = url_of(orders).partition("schema=")[2]
    with postgres.client() as owner:
        owner.execute("CREATE ROLE app LOGIN")
        try:
            with closing(psycopg.connect(f"{libpq(url_of(orders))}&user=app")) as app:
                with pytest.raises(bide.AccessDenied, match="may not use the queue"):
                    orders.put(1, within=app)
                app.rollback()
                owner.execute(f"SELECT {schema}.allow('app', '{{mail%}}')".encode())
                app.execute("SELECT 1")
                with pytest.raises(bide.AccessDenied, match="app may not use the queue orders"):
                    orders.put(1, within=app)
                with bide.Queue("mail", url_of(orders)) as mail:
                    assert mail.put(1, within=app)  # the same transaction
                    app.commit()
                    assert mail.counts().flow.put == 1
        finally:
            owner.execute(f"DELETE FROM {schema}.access; DROP OWNED BY app; DROP ROLE app".encode())


def test_a_store_that_its_own_user_may_not_make(
    shop: psycopg.Connection[Any], postgres: PostgresServer
) -> None:
    with postgres.client() as owner:
        owner.execute("CREATE ROLE poor LOGIN")
        try:
            url = f"{postgres.url.replace('bide@', 'poor@')}&schema=new"
            with bide.Queue("orders", url) as orders:
                with pytest.raises(bide.AccessDenied, match="may not do that"):
                    orders.put(1, within=shop)
        finally:
            owner.execute("DROP ROLE poor")


def test_a_server_that_cannot_be_reached(shop: psycopg.Connection[Any]) -> None:
    with bide.Queue("orders", "postgresql://localhost:1/shop") as orders:
        with pytest.raises(bide.StoreUnavailable):
            orders.put(1, within=shop)


def test_commits_stay_durable(orders: bide.Queue, shop: psycopg.Connection[Any]) -> None:
    """Waking others does not wait for the disk; the user's commit does."""
    waiting = threading.Thread(target=lambda: orders.claim(wait="100ms"))
    waiting.start()
    orders.put(1, delay=60, within=shop)
    schema = url_of(orders).partition("schema=")[2]
    shop.execute(f"""SELECT {schema}.put('orders', '1', delay => '1 minute')""".encode())
    assert shop.execute("SHOW synchronous_commit").fetchone() == ("on",)
    shop.commit()
    waiting.join()


def test_an_open_transaction_does_not_stop_those_who_go_to_sleep(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    """The rows of sleepers are not locked by whoever puts."""
    schema = url_of(orders).partition("schema=")[2]
    assert orders.claim(wait="20ms") == []
    assert orders.put(1, within=shop)
    shop.execute(f"""SELECT {schema}.put('orders', '2')""".encode())
    assert orders.claim(wait="20ms") == []
    shop.commit()
    assert len(orders.claim(2, wait="60s")) == 2


def test_who_goes_to_sleep_while_a_transaction_is_open_looks_by_itself(
    orders: bide.Queue, shop: psycopg.Connection[Any], postgres: PostgresServer
) -> None:
    """Nobody slept at the put, so the commit tells nobody; who waits asks each second."""
    assert orders.put(1, within=shop)
    found: list[bide.Delivery] = []
    waiting = threading.Thread(target=lambda: found.extend(orders.claim(wait=10 * BOUND)))
    waiting.start()
    schema = url_of(orders).partition("schema=")[2]
    with postgres.client() as client:
        until(client, f"SELECT count(*) FROM {schema}.sleeper WHERE queue = 'orders'", [(1,)])
    shop.commit()
    waiting.join(BOUND)
    assert [delivery.body for delivery in found] == [1]
    found[0].ack()


def test_a_commit_tells_who_waits_what_is_due_soon_and_nothing_else(
    orders: bide.Queue, shop: psycopg.Connection[Any]
) -> None:
    schema = url_of(orders).partition("schema=")[2]
    orders.put(1, id="held")
    orders.claim(lease="1h")
    orders.put_many([bide.NewMessage(n, id=f"m{n}", delay="1h") for n in range(3)])
    heard: list[str] = []
    shop.add_notify_handler(lambda told: heard.append(told.payload.partition(" ")[2]))
    key = "left(md5(key || 'orders'), 16)"
    names = f"SELECT channel, {key} FROM {schema}.store, {schema}.secret"
    ((channel, tag),) = shop.execute(names.encode()).fetchall()
    shop.execute(f"LISTEN {channel}".encode())
    shop.execute(f"INSERT INTO {schema}.sleeper VALUES ('p', 'orders', 2^53, 2^53)".encode())
    shop.commit()

    def wakes(change: Callable[..., object], *arguments: object, **options: object) -> bool:
        heard.clear()
        change(*arguments, within=shop, **options)
        shop.commit()
        return heard == [tag]

    for put, bodies in ((orders.put, 1), (orders.put_many, [1, 2])):
        assert wakes(put, bodies)
        assert wakes(put, bodies, delay="3s")
        assert wakes(put, bodies, at=1_700_000_000)
        assert not wakes(put, bodies, delay="1h")
        assert not wakes(put, bodies, at=2_000_000_000)
    assert wakes(orders.put, 1, id="m0", on_conflict="replace")
    assert wakes(orders.put, 1, id="m1", on_conflict="replace", delay="1h", latest=0)
    assert wakes(orders.reschedule, "m2", delay="3s")
    assert not wakes(orders.reschedule, "m2", delay="1h")
    assert not wakes(orders.reschedule, "held", delay="1h")


def test_the_first_put_makes_the_tables_in_the_transaction(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE bill (id)")
        with bide.Queue("orders", sqlite_url(tmp_path)) as orders:
            shop.execute("INSERT INTO bill VALUES (1)")
            assert orders.put(1, id="a", within=shop)
            shop.rollback()
            tables = shop.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            assert tables.fetchall() == [("bill",)]
            assert orders.put(1, id="b", within=shop)
            shop.commit()
            assert [message.id for message in orders.scan()] == ["b"]


def test_somebody_else_who_writes_is_an_error_and_the_transaction_goes_on(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", sqlite_url(tmp_path)) as orders,
        closing(sqlite3.connect(tmp_path / "shop.db", timeout=0.01)) as shop,
        closing(sqlite3.connect(tmp_path / "shop.db")) as other,
    ):
        assert orders.counts().flow.put == 0
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(bide.StoreBusy, match="another process is writing to"):
            orders.put(1, within=shop)
        shop.execute("BEGIN")
        with pytest.raises(bide.StoreBusy, match="another process is writing to"):
            orders.put(1, within=shop)
        other.rollback()
        assert orders.put(1, within=shop)
        shop.commit()
        assert orders.audit()


def test_on_a_full_disk_sqlite_rolls_the_whole_transaction_back(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", sqlite_url(tmp_path)) as orders,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        assert orders.counts().flow.put == 0
        shop.execute("BEGIN")
        assert orders.put(1, id="first", within=shop)
        (pages,) = shop.execute("PRAGMA page_count").fetchone()
        shop.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(bide.StoreFull):
            orders.put_many(["x" * 5_000] * 50, within=shop)
        assert not shop.in_transaction
        assert orders.counts().flow.put == 0
        assert orders.audit()


def test_a_message_is_claimed_by_who_waits_once_it_is_committed(tmp_path: Path) -> None:
    with (
        bide.Queue("orders", sqlite_url(tmp_path)) as orders,
        closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
    ):
        assert orders.claim() == []
        with ThreadPoolExecutor(1) as waiting:
            claimed = waiting.submit(orders.claim, wait="60s")
            assert orders.put(1, within=shop)
            shop.commit()
            (delivery,) = claimed.result()
        delivery.ack()


def test_a_relative_url_names_the_file_that_it_named_when_the_queue_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "100%41 #1?", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    with (
        bide.Queue("orders", "sqlite:///shop.db") as orders,
        closing(sqlite3.connect(here / "shop.db")) as shop,
    ):
        assert orders.put(1, id="a", within=shop)
        monkeypatch.chdir(other)
        assert orders.put(2, id="b", within=shop)
        shop.commit()
        assert [message.id for message in orders.scan()] == ["a", "b"]
    assert not list(other.iterdir())


KILLS = 4

PSYCOPG = """
import os, signal, sys
import bide, psycopg
url, place, point = sys.argv[1:4]
orders = bide.Queue("orders", url)
shop = psycopg.connect(place)
def die(where):
    if where == point:
        os.kill(os.getpid(), signal.SIGKILL)
for number in range(3):
    id = f"order-{os.getpid()}-{number}"
    shop.execute("INSERT INTO bill VALUES (%s)", (id,))
    assert orders.put(number, id=id, delay=60, within=shop)
    if number == 2:
        die("before the commit")
        shop.pgconn.send_query(b"COMMIT")
        while shop.pgconn.flush():
            pass
        die("before the answer")
    shop.commit()
"""

SQLITE = """
import sys
import bide, sqlite3
orders = bide.Queue("orders", sys.argv[1])
shop = sqlite3.connect(sys.argv[2])
number = 0
while True:
    number += 1
    id = f"order-{sys.argv[3]}-{number}"
    shop.execute("INSERT INTO bill VALUES (?)", (id,))
    assert orders.put(number, id=id, delay=60, within=shop)
    shop.commit()
    print(id, flush=True)
"""


def messages(orders: bide.Queue) -> set[str]:
    return {message.id for message in orders.scan()}


@pytest.mark.process
@pytest.mark.parametrize("point", ["before the commit", "before the answer"])
def test_killed_on_postgresql(postgres_url: Callable[[], str], point: str) -> None:
    url = postgres_url()
    with bide.Queue("orders", url) as orders, psycopg.connect(libpq(url)) as shop:
        assert orders.counts().flow.put == 0
        shop.execute("CREATE TABLE bill (id text)")
        shop.commit()
        done = subprocess.run(
            [sys.executable, "-c", PSYCOPG, url, libpq(url), point],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        # The server notices that its client is gone, and commits what it had been told to.
        shop.execute("LOCK TABLE bill")
        bills = {id for (id,) in shop.execute("SELECT id FROM bill")}
        assert bills == messages(orders)
        assert len(bills) >= 2
        shop.execute("DROP TABLE bill")
        shop.commit()
        assert orders.audit()


@pytest.mark.process
def test_killed_on_sqlite(tmp_path: Path, url_of: Callable[[str], str]) -> None:
    url = url_of("sqlite")
    confirmed: set[str] = set()
    with bide.Queue("orders", url) as orders:
        assert orders.counts().flow.put == 0

        shop = sqlite3.connect(file_of(url))
        shop.execute("CREATE TABLE bill (id text)")
        for number in range(KILLS):
            process = subprocess.Popen(
                [sys.executable, "-c", SQLITE, url, file_of(url), str(number)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            for _ in range(random.randrange(1, 30)):
                confirmed.add(process.stdout.readline().strip())
            os.kill(process.pid, signal.SIGKILL)
            confirmed |= {line.strip() for line in process.stdout if line.endswith("\n")}
            process.wait()
            process.stdout.close()
        bills = {id for (id,) in shop.execute("SELECT id FROM bill")}
        shop.close()
        assert confirmed <= bills
        assert bills == messages(orders)
        assert orders.audit()
