from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bide.testing import ManualWorker, ScratchStore, WorkerFactory
from examples.conftest import Play
from examples.order_timeout import shop


@pytest.fixture
def worker(
    bide_worker: WorkerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ManualWorker:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    worker = bide_worker(shop.app)  # its lifespan opens the database, for the tests as well
    with shop.Session.begin() as session:
        session.add(shop.Article(name="teapot", stock=100))
    return worker


def state(order: str) -> str:
    with shop.Session() as session:
        return session.get_one(shop.Order, order).state


def stock() -> int:
    with shop.Session() as session:
        return session.get_one(shop.Article, "teapot").stock


def test_what_is_not_paid_goes_back_on_the_shelf(
    worker: ManualWorker, bide_store: ScratchStore
) -> None:
    order = shop.place("teapot", pieces=3)
    bide_store.assert_put("order-timeouts", shop.Deadline(order), delay="30m")
    assert stock() == 97
    worker.advance("29m")
    assert state(order) == "unpaid"
    worker.advance("1m")
    assert (state(order), stock()) == ("cancelled", 100)


def test_what_is_paid_in_time_is_left_alone(worker: ManualWorker, bide_store: ScratchStore) -> None:
    order = shop.place("teapot")
    receipt = shop.pay(order)
    assert receipt == shop.Receipt(True, "the timeout is cancelled: no worker will get it")
    assert bide_store.pending("order-timeouts") == []
    assert worker.advance("1d") == []
    assert (state(order), stock()) == ("paid", 99)


def test_a_payment_while_the_time_out_is_being_handled_wins(
    worker: ManualWorker, bide_store: ScratchStore
) -> None:
    order = shop.place("teapot")
    bide_store.clock.advance(1800)
    (delivery,) = bide_store.queue("order-timeouts").claim()  # some worker has it in hand
    receipt = shop.pay(order)
    assert receipt.accepted
    assert f"order-{order} was not cancelled: worker " in receipt.note
    shop.time_out(shop.Deadline(delivery.body["order"]))
    assert (state(order), stock()) == ("paid", 99)


def test_a_payment_that_comes_too_late_is_refused(worker: ManualWorker) -> None:
    order = shop.place("teapot")
    worker.advance("30m")
    assert shop.pay(order).note == "the order is cancelled; the money goes back"
    assert shop.pay("4711").note == "the order is not known; the money goes back"
    assert (state(order), stock()) == ("cancelled", 100)


def test_in_a_race_each_order_has_one_end(worker: ManualWorker, bide_store: ScratchStore) -> None:
    orders = [shop.place("teapot") for _ in range(40)]
    bide_store.clock.advance(1800)
    with ThreadPoolExecutor(4) as customers:
        receipts = customers.map(shop.pay, reversed(orders))
        worker.run_due()  # from the first, while the customers pay from the last
    accepted = [receipt.accepted for receipt in receipts][::-1]
    assert [state(order) == "paid" for order in orders] == accepted
    assert stock() == 100 - sum(accepted)
    assert bide_store.queue("order-timeouts").audit()
    assert bide_store.pending("order-timeouts") == []


def test_a_time_out_that_comes_twice_counts_once(worker: ManualWorker) -> None:
    order = shop.place("teapot", pieces=5)
    for _ in range(2):
        shop.time_out(shop.Deadline(order))
    assert (state(order), stock()) == ("cancelled", 100)


def test_what_is_sold_out_cannot_be_ordered(worker: ManualWorker, bide_store: ScratchStore) -> None:
    with pytest.raises(shop.SoldOut):
        shop.place("teapot", pieces=101)
    assert bide_store.pending("order-timeouts") == []
    assert stock() == 100


@pytest.mark.process
def test_it_plays_with_a_real_worker(play: Play) -> None:
    told = play("order_timeout")
    assert told.count("paid: the timeout is cancelled") >= 5
    assert "on the shelf" in told
