"""Past runs of messages that repeat, put beside those that the message still delivers itself."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.testing import FakeClock

MONDAY = datetime(2027, 1, 4, tzinfo=UTC)
THURSDAY = datetime(2027, 1, 7, tzinfo=UTC)
NEXT_MONDAY = datetime(2027, 1, 11, tzinfo=UTC)


def daily(**bounds: Any) -> bide.Cron:
    return bide.Cron("0 9 * * *", "UTC", **bounds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(MONDAY.replace(hour=8))


@pytest.fixture(params=["memory", "sqlite"])
def reports(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> Iterator[bide.Queue]:
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": f"sqlite:///{tmp_path}/bide.db"}
    with bide.Queue("reports", urls[request.param], clock=clock) as reports:
        yield reports


def backfilled_days(reports: bide.Queue, before: datetime = THURSDAY) -> list[int]:
    outcomes = reports.backfill("ann", after=MONDAY, before=before)
    assert all(outcomes)
    return [int(outcome.id[len("ann@2027-01-") :][:2]) for outcome in outcomes]


def delivered_days(reports: bide.Queue) -> list[int]:
    """Return the days whose runs are delivered now, by the message and by what was put."""
    days: list[int] = []
    while deliveries := reports.claim(10):
        for delivery in deliveries:
            own_time = delivery.message.run_at
            time = delivery.id.partition("@")[2] if own_time is None else own_time.isoformat()
            days.append(datetime.fromisoformat(time).day)
            delivery.ack()
    return sorted(days)


@pytest.mark.parametrize("before", [THURSDAY, NEXT_MONDAY])
@pytest.mark.parametrize("missed", ["once", "skip", "all"])
def test_each_run_that_an_outage_has_missed_is_delivered_once(
    reports: bide.Queue, clock: FakeClock, missed: Any, before: datetime
) -> None:
    reports.put("x", id="ann", repeat=daily(missed=missed))
    clock.advance("3d")  # Thursday, 08:00
    assert backfilled_days(reports, before) == ([] if missed == "all" else [4, 5])
    assert delivered_days(reports) == [4, 5, 6]
    clock.advance("2h")
    assert delivered_days(reports) == [7]


def test_runs_that_are_too_late_by_grace_or_expiry_are_put(
    reports: bide.Queue, clock: FakeClock
) -> None:
    reports.put("x", id="ann", repeat=daily(missed="skip", grace="1h"))
    clock.advance("3d")
    assert backfilled_days(reports, NEXT_MONDAY) == [4, 5, 6]
    reports.cancel("ann")
    assert delivered_days(reports) == [4, 5, 6]
    reports.put("x", id="bob", repeat=daily(), expires="1h")
    clock.advance("3d")
    outcomes = reports.backfill("bob", after=THURSDAY, before=NEXT_MONDAY)
    assert [outcome.id[:14] for outcome in outcomes] == [
        f"bob@2027-01-{day}" for day in ("07", "08", "09")
    ]


def test_what_was_missed_while_a_message_was_held_is_put(
    reports: bide.Queue, clock: FakeClock
) -> None:
    reports.put("x", id="ann", repeat=daily())
    reports.hold("ann")
    clock.advance("3d")
    assert backfilled_days(reports, NEXT_MONDAY) == [4, 5, 6]
    reports.resume("ann")
    clock.advance("2h")
    assert delivered_days(reports) == [4, 5, 6, 7]


def test_what_was_missed_after_the_last_run_is_none_of_its_own(
    reports: bide.Queue, clock: FakeClock
) -> None:
    reports.put("x", id="ann", repeat=daily(times=1), expires="1h")
    clock.advance("3d")
    assert backfilled_days(reports) == [4, 5, 6]


def test_a_run_that_has_begun_is_not_put_beside_itself(
    reports: bide.Queue, clock: FakeClock
) -> None:
    reports.put("x", id="ann", repeat=daily(), attempts=1)
    clock.advance("3d")
    (delivery,) = reports.claim()
    assert backfilled_days(reports) == []
    delivery.retry(reason="down")
    assert backfilled_days(reports) == [4, 5]
    assert delivered_days(reports) == [4, 5]
    assert reports.get("ann@2027-01-06T09:00:00.000Z") is not None
