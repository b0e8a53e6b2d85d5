from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bide.testing import ManualWorker, ScratchStore, WorkerFactory
from examples.conftest import Play
from examples.coupon_reminder import coupons
from examples.coupon_reminder.coupons import issue, use

QUEUE = "coupon-reminders"


@pytest.fixture
def worker(
    bide_worker: WorkerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ManualWorker:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'coupons.db'}")
    return bide_worker(coupons.app)


@pytest.fixture
def expiry(bide_store: ScratchStore) -> datetime:
    return bide_store.clock.datetime() + timedelta(days=10)


def reminded() -> list[str]:
    with coupons.Session() as session:
        return [row.coupon for row in session.query(coupons.Reminder).order_by("coupon")]


def test_the_owner_is_reminded_three_days_before(worker: ManualWorker, expiry: datetime) -> None:
    issue("A1", "Ada", expiry)
    worker.advance_to(expiry - timedelta(days=3, milliseconds=1))
    assert reminded() == []
    worker.advance("1ms")
    assert reminded() == ["A1"]


def test_the_source_has_put_it_a_day_before(
    worker: ManualWorker, bide_store: ScratchStore, expiry: datetime
) -> None:
    issue("A1", "Ada", expiry)
    worker.advance_to(expiry - timedelta(days=4, hours=2))
    bide_store.assert_not_put(QUEUE)
    worker.advance("3h")
    bide_store.assert_put(
        QUEUE,
        coupons.Remind("A1"),
        id="coupon-A1",
        at=expiry - timedelta(days=3),
        expires="3d",
        times=1,
    )


def test_nobody_is_reminded_twice(worker: ManualWorker, expiry: datetime) -> None:
    issue("A1", "Ada", expiry)
    worker.advance("20d")
    coupons.remind(coupons.Remind("A1"))  # as if an ack had been lost
    assert reminded() == ["A1"]
    assert [one.id for one in worker.handled if one.queue == QUEUE] == ["coupon-A1"]


def test_who_has_used_it_is_not_reminded(
    worker: ManualWorker, bide_store: ScratchStore, expiry: datetime
) -> None:
    issue("A1", "Ada", expiry)
    worker.advance_to(expiry - timedelta(days=3, minutes=10))
    bide_store.assert_put(QUEUE, id="coupon-A1")  # it is there, and the till knows nothing of it
    assert use("A1")
    assert not use("A1")
    done = [one for one in worker.advance("1d") if one.queue == QUEUE]
    assert [one.outcome for one in done] == ["discarded"]
    assert reminded() == []


def test_a_store_that_was_lost_is_filled_again(worker: ManualWorker, expiry: datetime) -> None:
    for code, hours in (("A1", -1), ("B2", 0), ("C3", 24), ("D4", 480)):
        issue(code, "Ada", expiry + timedelta(hours=hours))
    use("C3")
    worker.advance_to(expiry - timedelta(days=3, minutes=30))  # B2 waits in the queue
    assert reminded() == ["A1"]
    worker.close()

    clock = worker.store.clock
    with ScratchStore(clock=clock) as fresh, ManualWorker(coupons.app, fresh) as other:
        other.run_due()
        fresh.assert_put(QUEUE, coupons.Remind("B2"), times=1)
        fresh.assert_not_put(QUEUE, id="coupon-A1")  # done, as the database knows
        other.advance("10d")
        assert reminded() == ["A1", "B2"]


def test_what_fell_due_while_all_was_down_is_caught_up(
    worker: ManualWorker, expiry: datetime
) -> None:
    issue("A1", "Ada", expiry)
    issue("B2", "Ben", expiry - timedelta(days=4))
    worker.store.clock.advance(8 * 86_400)  # no worker; B2 has expired, A1 is a day late
    worker.advance("1h")
    assert reminded() == ["A1"]


@pytest.mark.full
@pytest.mark.process
def test_it_plays_with_a_real_worker(play: Play) -> None:
    assert play("coupon_reminder").splitlines() == [
        "four coupons are issued; Ben has used his",
        "Ada, your coupon A1 is good for three more days",
        "the queue's file is lost; a worker starts on an empty one",
        "Cleo, your coupon C3 is good for three more days",
    ]
