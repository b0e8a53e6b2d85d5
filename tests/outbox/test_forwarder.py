"""The forwarder: once each, in the order of the commits, whatever dies."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

import bide
from bide.outbox.forwarder import Forwarder, table_of
from bide.outbox.rows import Table
from tests.descriptors import low_ones_taken

BOUND = 60.0
"""Seconds that a test waits for what is sure to come."""


@pytest.fixture(params=["database", "file"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    table_of(url).close()
    return url


@contextmanager
def connected(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            yield connection
    else:
        with closing(psycopg.connect(url)) as connection:
            yield connection


@pytest.fixture
def shop(url: str) -> Iterator[Any]:
    with connected(url) as connection:
        yield connection


def rows(shop: Any, table: str = "bide_outbox", columns: str = "id") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = shop.execute(
        f"SELECT {columns} FROM {table} ORDER BY number"
    ).fetchall()
    shop.rollback()
    return found


def forward(orders: bide.Queue, url: str) -> None:
    assert Forwarder(lambda: table_of(url), orders._lane).run_once()


class Killed(BaseException):
    """Stands for the end of the process, at this step."""


class Mortal:
    """An outbox whose forwarder dies at its n-th step."""

    def __init__(self, table: Table, steps: int) -> None:
        self.table = table
        self.left = steps

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def mark(self, numbers: Sequence[int]) -> None:
        self._step()
        self.table.mark(numbers)
        self._step()

    def delete(self, numbers: Sequence[int]) -> None:
        self._step()
        self.table.delete(numbers)
        self._step()

    def bury(self, number: int, reason: str) -> None:
        self._step()
        self.table.bury(number, reason)
        self._step()


@pytest.mark.parametrize("conflict", ["keep", "replace"])
@pytest.mark.parametrize("steps", range(5))
def test_a_forwarder_that_dies_at_any_step_neither_loses_nor_doubles(
    orders: bide.Queue, url: str, shop: Any, steps: int, conflict: Any
) -> None:
    for number in range(3):
        assert orders.put(number, id=f"m{number}", on_conflict=conflict, within=shop)
    shop.commit()
    forwarder = Forwarder(lambda: table_of(url), orders._lane)
    with closing(table_of(url)) as table:
        mortal: Any = Mortal(table, steps)
        if steps < 4:
            with pytest.raises(Killed):
                forwarder.forward(mortal)
        else:
            assert forwarder.forward(mortal) == 3
    delivered = []
    for delivery in orders.claim(10):  # acked before the next forwarder
        delivered.append(delivery.body)
        delivery.ack()
    forward(orders, url)
    for delivery in orders.claim(10):
        delivered.append(delivery.body)
        delivery.ack()
    assert sorted(delivered) == [0, 1, 2]
    assert rows(shop) == rows(shop, "bide_outbox_dead") == []
    assert orders.counts().flow.put == 3


def test_a_message_that_is_cancelled_meanwhile_stays_so(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    orders.put(1, id="a", within=shop)
    orders.put(1, id="b", delay=60, within=shop)
    shop.commit()
    with closing(table_of(url)) as table:
        mortal: Any = Mortal(table, 2)
        with pytest.raises(Killed):
            Forwarder(lambda: table_of(url), orders._lane).forward(mortal)
    assert orders.cancel("a")
    assert orders.reschedule("b", at=2_000_000_000)
    forward(orders, url)
    assert [(message.id, message.due) for message in orders.scan()] == [("b", 2_000_000_000_000)]


def test_what_happens_to_one_message_happens_in_its_order(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    for number in range(5):
        assert orders.put(number, id="a", delay=60, within=shop)
        assert orders.cancel("a", within=shop)
    assert orders.put("last", id="a", delay=60, within=shop)
    shop.commit()
    forward(orders, url)
    (message,) = orders.scan()
    assert message.body == "last"
    assert orders.counts().flow.cancelled == 5
    assert rows(shop, "bide_outbox_dead") == []


def test_what_the_store_refuses_is_set_aside_and_blocks_nothing(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    orders.put(0, id="there", delay=60)
    assert orders.put(1, id="there", within=shop)
    assert orders.cancel("nowhere", within=shop)
    assert orders.put(2, id="new", within=shop)
    shop.commit()
    forward(orders, url)
    assert {message.id: message.body for message in orders.scan()} == {"there": 0, "new": 2}
    dead = rows(shop, "bide_outbox_dead", "queue, id, reason")
    assert [(queue, id) for queue, id, _ in dead] == [("orders", "there"), ("orders", "nowhere")]
    assert dead[0][2].startswith("there is delayed")
    assert dead[1][2] == "too late to cancel: nowhere is not in the queue"
    assert rows(shop) == []


def test_a_row_that_says_nothing_is_set_aside(orders: bide.Queue, url: str, shop: Any) -> None:
    for id in ("a", "b", "c"):
        orders.put(1, id=id, within=shop)
    shop.execute("UPDATE bide_outbox SET command = 'garbage' WHERE id = 'b'")
    shop.commit()
    forward(orders, url)
    assert sorted(message.id for message in orders.scan()) == ["a", "c"]
    ((reason,),) = rows(shop, "bide_outbox_dead", "reason")
    assert reason.startswith("this is no command that bide knows")


def test_a_store_that_is_away_is_waited_for(url: str, shop: Any, orders: bide.Queue) -> None:
    with bide.Queue("orders", "redis://localhost:1?timeout=0.1s") as away:
        assert away.put(1, id="a", within=shop).state == "pending"
        shop.commit()
        with pytest.raises(bide.StoreUnavailable):
            Forwarder(lambda: table_of(url), away._lane).run_once()
    assert rows(shop) == [("a",)]
    forward(orders, url)
    assert [message.id for message in orders.scan()] == ["a"]


def test_one_forwards_and_when_it_stops_another_goes_on(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    first = Forwarder(lambda: table_of(url), orders._lane)
    with closing(table_of(url)) as table, table.lead() as leads:
        assert leads
        assert first.run_once() is False
    running = threading.Thread(target=first.run)
    running.start()
    assert orders.put(1, within=shop)
    shop.commit()
    (delivery,) = orders.claim(wait=BOUND)
    delivery.ack()
    first.stop()
    running.join(BOUND)
    assert not running.is_alive()
    assert orders.put(2, within=shop)
    shop.commit()
    forward(orders, url)
    assert [message.body for message in orders.scan()] == [2]


def test_a_running_forwarder_hears_of_a_commit(
    orders: bide.Queue, url: str, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bide.outbox import forwarder as module

    monkeypatch.setattr(module, "LOOK", 10 * BOUND)  # it does not look by itself
    forwarder = Forwarder(lambda: table_of(url), orders._lane)
    running = threading.Thread(target=forwarder.run)
    running.start()
    try:
        for number in range(30):
            assert orders.put(number, within=shop)
            shop.commit()
            (delivery,) = orders.claim(wait=BOUND)
            assert delivery.body == number
            delivery.ack()
    finally:
        forwarder.stop()
        running.join(BOUND)


def test_two_transactions_of_one_message_have_an_order(orders: bide.Queue, database: str) -> None:
    """The second waits for the commit of the first, so that numbers are in commit order."""
    table_of(database).close()
    with connected(database) as first, connected(database) as second:
        assert orders.put(1, id="a", delay=60, within=first)

        def later() -> None:
            assert orders.cancel("a", within=second)
            second.commit()

        cancelling = threading.Thread(target=later)
        cancelling.start()
        assert orders.put(2, id="other", delay=60, within=first)  # nobody else waits
        cancelling.join(0.05)
        assert cancelling.is_alive()
        first.commit()
        cancelling.join(BOUND)
        forward(orders, database)
    assert [message.id for message in orders.scan()] == ["other"]


def test_no_outbox_in_the_database(orders: bide.Queue, database: str) -> None:
    with connected(database) as shop:
        with pytest.raises(bide.WrongConnection, match="bide forward makes it"):
            orders.put(1, within=shop)


def test_a_user_without_rights(orders: bide.Queue, database: str) -> None:
    table_of(database).close()
    with connected(database) as owner:
        owner.execute("CREATE ROLE app LOGIN")
        owner.commit()
        try:
            with connected(database.replace("bide@", "app@")) as app:
                with pytest.raises(bide.AccessDenied, match="GRANT INSERT ON bide_outbox"):
                    orders.put(1, within=app)
                app.rollback()
                owner.execute("GRANT INSERT ON bide_outbox TO app")
                owner.commit()
                assert orders.put(1, within=app)
                app.commit()
        finally:
            owner.execute("DROP OWNED BY app; DROP ROLE app")
            owner.commit()
    forward(orders, database)
    assert orders.counts().flow.put == 1


def test_what_the_queue_keeps_goes_along(redis_url: Any, url: str, shop: Any) -> None:
    with bide.Queue("kept", redis_url(), keep="1d") as kept:
        for number in range(3):
            assert kept.put(number, within=shop)
        shop.commit()
        with closing(table_of(url)) as table:
            forwarder = Forwarder(lambda: table_of(url), kept._lane)
            assert forwarder.forward(table) == 6  # in one batch
        assert kept.counts().keep == 86_400_000
        assert kept.counts().flow.put == 3


def test_what_cannot_wait(orders: bide.Queue, url: str, shop: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match="latest= does not go through an outbox"):
        orders.put(1, id="a", on_conflict="replace", delay=5, latest=9, within=shop)
    with pytest.raises(bide.InvalidArgument, match="cancelled by its id"):
        orders.cancel(group="g", within=shop)


def test_the_database_goes_away_and_comes_back(
    orders: bide.Queue, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    forwarder = Forwarder(lambda: table_of(database), orders._lane)
    running = threading.Thread(target=forwarder.run)
    table_of(database).close()
    running.start()
    try:
        with connected(database) as shop:
            for number in range(2):
                assert orders.put(number, within=shop)
                shop.commit()
                (delivery,) = orders.claim(wait=BOUND)
                delivery.ack()
                shop.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'bide forward'"
                )
                shop.commit()
    finally:
        forwarder.stop()
        running.join(BOUND)
        assert not running.is_alive()


def test_a_wait_in_a_process_with_many_open_files_ends(url: str) -> None:
    with low_ones_taken(), closing(table_of(url)) as table:
        table.wake()
        table.wait(BOUND)
