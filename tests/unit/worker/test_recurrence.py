"""When something is due again: against brute force, where clocks are changed, in chains."""

import sys
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bide
from bide.model.recurrence import CronTimes, PeriodTimes, Recurrence, parse, recurrence
from bide.model.times import to_datetime
from bide.testing import ManualWorker, ScratchStore
from tests.effort import effort

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

# A zone, and a day around which its clocks are changed.
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Sao_Paulo", "2019-02-17"),
    ("Europe/Dublin", "2026-03-29"),
    ("Europe/Dublin", "2026-10-25"),
    ("Africa/Casablanca", "2026-02-15"),
    ("Africa/Casablanca", "2026-03-22"),
    ("Pacific/Chatham", "2026-04-05"),
    ("Pacific/Chatham", "2026-09-27"),
    ("America/St_Johns", "2006-04-02"),
    ("America/St_Johns", "2006-10-29"),
    ("Pacific/Apia", "2011-12-30"),
    ("Asia/Pyongyang", "2018-05-05"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Asia/Kathmandu", "2026-03-29"),
    ("Asia/Shanghai", "2026-03-29"),
    ("UTC", "2026-03-29"),
]

MINUTES = {
    "*": range(60),
    "*/7": range(0, 60, 7),
    "*/30": (0, 30),
    "0": (0,),
    "30": (30,),
    "45": (45,),
    "0,15": (0, 15),
    "5-50/5": range(5, 51, 5),
    "59": (59,),
}
HOURS = {
    "*": range(24),
    "*/2": range(0, 24, 2),
    "*/5": range(0, 24, 5),
    "0": (0,),
    "1": (1,),
    "2": (2,),
    "3": (3,),
    "1-3": (1, 2, 3),
    "2,14": (2, 14),
    "23": (23,),
    "0-23": range(24),
}
DAYS = {"*": range(8), "SUN": (0, 7), "MON-FRI": range(1, 6), "6": (6,), "1,7": (0, 1, 7)}


def told(moment: int, zone: ZoneInfo) -> datetime:
    return to_datetime(moment).astimezone(zone)


@lru_cache(maxsize=64)
def real_minutes(name: str, day: str) -> list[tuple[datetime, datetime]]:
    """Return each minute of some days in UTC, and what the clocks on the wall show then."""
    zone, start = ZoneInfo(name), datetime.fromisoformat(day).replace(tzinfo=UTC) - 3 * DAY
    minutes = [start + number * MINUTE for number in range(8 * 24 * 60)]
    return [(one, one.astimezone(zone).replace(tzinfo=None, fold=0)) for one in minutes]


def brute_force(name: str, day: str, minute: str, hour: str, weekday: str) -> list[datetime]:
    """Return when an expression is due, by looking at every minute."""

    def named(wall: datetime) -> bool:
        return (
            wall.minute in MINUTES[minute]
            and wall.hour in HOURS[hour]
            and wall.isoweekday() in {number or 7 for number in DAYS[weekday]}
        )

    minutes = real_minutes(name, day)
    if minute.startswith("*") or hour.startswith("*"):
        return [moment for moment, wall in minutes if named(wall)]
    seen = set()
    due: list[datetime] = []
    before = minutes[0][1]
    for moment, wall in minutes[1:]:
        fresh = []
        while before < wall:  # what the clocks pass over in one leap comes now
            before += MINUTE
            fresh.append(before)
        before = wall
        for one in fresh:
            if one not in seen and named(one) and (not due or due[-1] != moment):
                due.append(moment)
        seen.update(fresh)
    return due


expressions = st.tuples(
    st.sampled_from(sorted(MINUTES)), st.sampled_from(sorted(HOURS)), st.sampled_from(sorted(DAYS))
)


@given(st.sampled_from(CHANGES), expressions, st.integers(0, 5 * 86_400_000))
@example(("Australia/Lord_Howe", "2026-04-05"), ("*/30", "2", "*"), 2 * 86_400_000)
@example(("Pacific/Apia", "2011-12-30"), ("0", "3", "*"), 0)
@settings(max_examples=effort(8, 300), deadline=None)
def test_cron_is_what_looking_at_every_minute_gives(
    change: tuple[str, str], fields: tuple[str, str, str], offset: int
) -> None:
    minute, hour, weekday = fields
    cron = CronTimes(f"{minute} {hour} * * {weekday}", ZoneInfo(change[0]))
    start = int(datetime.fromisoformat(change[1]).replace(tzinfo=UTC).timestamp() * 1000)
    begin = start - 2 * 86_400_000 + offset
    end = start + 4 * 86_400_000
    expected = [
        int(moment.timestamp() * 1000) for moment in brute_force(*change, minute, hour, weekday)
    ]
    found, at = [], cron.after(begin)
    while at < end:
        found.append(at)
        at = cron.after(at)
    assert found == [moment for moment in expected if begin < moment < end]
    if found:
        assert cron.latest(end - 1, begin) == found[-1]
        for moment in found:
            assert cron.latest(moment, begin) == cron.latest(moment + 1, begin) == moment
    assert all(cron.after(moment - 1) == moment for moment in found)


@given(st.integers(100, 10**10), st.integers(0, 4 * 10**12), st.sampled_from(CHANGES))
def test_every_is_a_grid_that_no_zone_moves(
    period: int, moment: int, change: tuple[str, str]
) -> None:
    every = PeriodTimes(period, ZoneInfo(change[0]))
    following = every.after(moment)
    assert moment < following <= moment + period
    assert following % period == 0
    assert every.after(following - 1) == following
    assert every.latest(moment, 0) == following - period


def walls(rule: Recurrence, start: str, count: int) -> list[str]:
    """Return the next times, as clocks on the wall show them."""
    moment = int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() * 1000)
    found = []
    for _ in range(count):
        moment = rule.after(moment)
        found.append(f"{told(moment, rule.zone):%d %H:%M %z}")
    return found


def cron(expression: str, zone: str) -> Recurrence:
    return recurrence(expression, None, zone)


def test_a_time_of_day_that_is_skipped_comes_when_the_gap_is_over() -> None:
    berlin = cron("30 2 * * *", "Europe/Berlin")
    assert walls(berlin, "2026-03-27T12:00", 3) == [
        "28 02:30 +0100",
        "29 03:00 +0200",
        "30 02:30 +0200",
    ]


def test_a_time_of_day_that_is_doubled_comes_once() -> None:
    berlin = cron("30 2 * * *", "Europe/Berlin")
    assert walls(berlin, "2026-10-24T12:00", 2) == ["25 02:30 +0200", "26 02:30 +0100"]
    # asked between the two
    assert walls(berlin, "2026-10-25T00:45", 1) == ["26 02:30 +0100"]


def test_what_goes_by_the_time_that_passes_leaves_out_and_doubles() -> None:
    half_hours = cron("*/30 * * * *", "Europe/Berlin")
    assert walls(half_hours, "2026-03-29T00:15", 3) == [
        "29 01:30 +0100",
        "29 03:00 +0200",
        "29 03:30 +0200",
    ]
    assert walls(half_hours, "2026-10-25T00:15", 4) == [
        "25 02:30 +0200",
        "25 02:00 +0100",
        "25 02:30 +0100",
        "25 03:00 +0100",
    ]


def test_a_zone_that_shifts_by_half_an_hour() -> None:
    daily = cron("15 2 * * *", "Australia/Lord_Howe")
    assert walls(daily, "2026-10-03T00:00", 2) == ["04 02:30 +1100", "05 02:15 +1100"]
    doubled = cron("45 1 * * *", "Australia/Lord_Howe")
    assert walls(doubled, "2026-04-04T00:00", 2) == ["05 01:45 +1100", "06 01:45 +1030"]


def test_a_day_that_was_skipped_whole() -> None:
    assert walls(cron("0 9 * * *", "Pacific/Apia"), "2011-12-29T00:00", 3) == [
        "29 09:00 -1000",
        "31 00:00 +1400",
        "31 09:00 +1400",
    ]


def test_every_is_not_moved() -> None:
    assert walls(recurrence(None, "12h", "Europe/Berlin"), "2026-03-28T13:00", 3) == [
        "29 01:00 +0100",
        "29 14:00 +0200",
        "30 02:00 +0200",
    ]


@pytest.mark.parametrize(
    ("alias", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 JAN *"),
    ],
)
def test_aliases(alias: str, expression: str) -> None:
    zone = "America/New_York"
    assert walls(cron(alias, zone), "2026-03-01T00:00", 5) == walls(
        cron(expression, zone), "2026-03-01T00:00", 5
    )


def test_days_that_are_rare() -> None:
    leap = cron("0 0 29 2 *", "Europe/Berlin")
    assert told(leap.after(1_772_442_000_000), leap.zone).isoformat() == "2028-02-29T00:00:00+01:00"
    last = cron("0 18 L * *", "UTC")
    assert walls(last, "2026-02-02T00:00", 2) == ["28 18:00 +0000", "31 18:00 +0000"]


@pytest.mark.parametrize("spec", ["cron 0 9 * * MON-FRI Asia/Shanghai", "every 900000 UTC"])
def test_a_spec_can_be_read_back(spec: str) -> None:
    assert parse(spec).spec == spec


@pytest.mark.parametrize(
    "spec", ["", "cron", "every x UTC", "every 5 UTC", "cron 0 9 * * * Mars/Base", "now and then"]
)
def test_what_is_no_spec(spec: str) -> None:
    with pytest.raises(bide.InvalidArgument):
        parse(spec)


@pytest.mark.parametrize(
    ("expression", "last"),
    [
        ("*/15 * * * *", "2026-11-21T09:15"),
        ("0 0 1 1 *", "2026-01-01T00:00"),
        ("* * * 1 *", "2026-01-31T23:59"),
        ("0 0 29 2 *", "2024-02-29T00:00"),
    ],
)
def test_the_last_of_many_is_found_without_going_through_all(
    expression: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    after = CronTimes.after

    def counted(self: CronTimes, moment: int) -> int:
        nonlocal steps
        steps += 1
        return after(self, moment)

    rule = cron(expression, "UTC")
    now = int(datetime(2026, 11, 21, 9, 20, tzinfo=UTC).timestamp() * 1000)
    long_ago = int(datetime(1999, 1, 1, tzinfo=UTC).timestamp() * 1000)
    monkeypatch.setattr(CronTimes, "after", counted)
    assert f"{told(rule.latest(now, long_ago), UTC_ZONE):%Y-%m-%dT%H:%M}" == last
    assert rule.latest(now, now - 1) == now - 1
    assert steps < 100


UTC_ZONE = ZoneInfo("UTC")


@pytest.mark.parametrize(
    ("cron", "every", "zone", "said"),
    [
        (None, None, "UTC", "a schedule needs cron= or every=, and not both"),
        ("0 9 * * *", "1h", "UTC", "a schedule needs cron= or every=, and not both"),
        (9, None, "UTC", "cron must be a str, not int"),
        ("0 9 * *", None, "UTC", "it has 4 fields, not 5: minute, hour, day of month, month"),
        ("0 9 * * * *", None, "UTC", "it has 6 fields, not 5"),
        ("60 9 * * *", None, "UTC", "is not valid: bad minute; write five fields"),
        ("0 9 * * MUN", None, "UTC", "bad day-of-week"),
        ("0 0 30 2 *", None, "UTC", "bad day-of-month"),
        ("0 0 31 * 8", None, "UTC", "bad day-of-week"),
        ("0 9 * * *", None, "Mars/Base", "timezone='Mars/Base' is not known here"),
        ("0 9 * * *", None, "", "timezone='' is not known here"),
        ("0 9 * * *", None, "../etc/passwd", "is not known here"),
        (None, 0, "UTC", "every=0 must be 100 ms or longer"),
        (None, "50ms", "UTC", "every='50ms' must be 100 ms or longer"),
        (None, -1, "UTC", "every=-1 is negative"),
        (None, "often", "UTC", "every='often' is not a valid duration"),
    ],
)
def test_what_cannot_be(cron: str, every: str, zone: str, said: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=said):
        recurrence(cron, every, zone)


def test_days_that_never_come() -> None:
    with pytest.raises(bide.InvalidArgument, match="it names no day that exists"):
        recurrence("0 0 */20 * 1L", None, "UTC")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(bide.InvalidArgument, match=r"pip install 'bide\[schedules\]'"):
        recurrence("0 9 * * *", None, "UTC")
    assert recurrence(None, "1h", "UTC").after(0) == 3_600_000  # which needs none


BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


def test_it_is_later_than_a_time_and_in_the_zone() -> None:
    due = datetime(2026, 10, 24, 9, tzinfo=BERLIN)
    following = bide.next_time(due, cron="0 9 * * *", timezone="Europe/Berlin")
    assert following == datetime(2026, 10, 25, 9, tzinfo=BERLIN)
    assert following - due.astimezone(UTC) == timedelta(hours=25)  # clocks were put back
    assert str(following.tzinfo) == "Europe/Berlin"
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
