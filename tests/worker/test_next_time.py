"""When a schedule is due next that a program keeps itself, and chains of messages made with it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import bide
from bide.testing import ManualWorker, ScratchStore

BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


def test_it_is_later_than_a_time_and_in_the_zone() -> None:
    due = datetime(2026, 10, 24, 9, tzinfo=BERLIN)
    following = bide.next_time(due, cron="0 9 * * *", timezone="Europe/Berlin")
    assert following == datetime(2026, 10, 25, 9, tzinfo=BERLIN)
    assert following - due.astimezone(UTC) == timedelta(hours=25)  # clocks were put back
    assert following.tzinfo == BERLIN
    assert bide.next_time(0, every="15m") == datetime(1970, 1, 1, 0, 15, tzinfo=UTC)


def test_by_default_it_is_later_than_the_time_of_the_test() -> None:
    with ScratchStore() as store:
        store.clock.advance(90 * 86_400)
        following = bide.next_time(every="1h")
        assert timedelta(0) < following - store.clock.datetime() <= timedelta(hours=1)


@pytest.mark.parametrize("rule", [{"cron": "* * * * *"}, {"every": "1m"}], ids=str)
@pytest.mark.parametrize(
    ("second", "minute"),
    [(59.999999, 1), (59.9991, 1), (60, 2), (60.0009, 2), (60.001, 2)],
)
def test_no_tick_is_left_out_next_to_a_time(
    rule: dict[str, str], second: float, minute: int
) -> None:
    """A time less than a millisecond before a tick is before it."""
    eleven = datetime(2019, 1, 14, 11, tzinfo=UTC)
    after = eleven + timedelta(seconds=second)
    expected = eleven + timedelta(minutes=minute)
    assert bide.next_time(after, **rule) == expected
    assert bide.next_time(after.timestamp(), **rule) == expected


def test_by_default_it_is_later_than_now() -> None:
    before = datetime.now(UTC)
    found = bide.next_time(every="1h")
    assert before < found <= datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "cron= or every="),
        ({"cron": "0 9 * * *", "every": "1h"}, "cron= or every="),
        ({"cron": "0 9"}, "2 fields"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Bonn"}, "Europe/Bonn"),
        ({"every": "1h", "after": datetime(2026, 1, 1)}, "after"),  # noqa: DTZ001
        ({"every": "1h", "after": "2026-01-01T00:00Z"}, "after"),
    ],
)
def test_what_is_not_valid_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=told):
        bide.next_time(**given)


class Reminders:
    """A schedule for each customer: each message puts the next one, as the documentation shows."""

    def __init__(self, store: ScratchStore) -> None:
        self.queue = bide.Queue("reminders")
        self.sent: list[str] = []
        self.app = bide.App()
        self.start = store.clock.datetime()
        self.app.handler("reminders", retry=bide.Backoff(attempts=5, first="3d", ceiling="3d"))(
            self.remind
        )
        self.fails = 0

    def plan(self, reminder: dict[str, str], after: datetime) -> None:
        due = bide.next_time(after, cron=reminder["cron"], timezone="Europe/Berlin")
        id = f"{reminder['name']}/{due.isoformat()}"
        self.queue.put(reminder, at=due, id=id, group=reminder["customer"])

    def remind(self, reminder: dict[str, str], delivery: bide.Delivery) -> None:
        self.plan(reminder, delivery.message.due_at)
        if self.fails:
            self.fails -= 1
            raise OSError("the mail server is away")
        self.sent.append(delivery.id)


def test_each_message_puts_the_next_one_and_a_group_ends_them() -> None:
    with ScratchStore() as store:
        reminders = Reminders(store)
        reminders.plan({"name": "a", "customer": "ann", "cron": "0 9 * * *"}, reminders.start)
        reminders.plan({"name": "b", "customer": "bob", "cron": "0 12 * * *"}, reminders.start)
        # A second one of a customer, at the same time.
        reminders.plan({"name": "c", "customer": "ann", "cron": "0 9 * * *"}, reminders.start)
        with ManualWorker(reminders.app, store) as worker:
            worker.advance("2d")
            assert reminders.queue.cancel(group="bob") == 1
            worker.advance("2d")
        assert [id.partition("/")[0] for id in reminders.sent].count("a") == 4
        assert [id.partition("/")[0] for id in reminders.sent].count("b") == 2
        assert [id.partition("/")[0] for id in reminders.sent].count("c") == 4
        assert len(set(reminders.sent)) == len(reminders.sent)


def test_a_message_that_is_retried_past_the_next_one_doubles_nothing() -> None:
    with ScratchStore() as store:
        reminders = Reminders(store)
        reminders.plan({"name": "a", "customer": "ann", "cron": "0 9 * * *"}, reminders.start)
        reminders.fails = 1  # it is tried again three days later
        with ManualWorker(reminders.app, store, errors="collect") as worker:
            worker.advance("6d")
        assert len(reminders.sent) == len(set(reminders.sent)) == 6
        assert len(list(reminders.queue.scan("delayed"))) == 1
