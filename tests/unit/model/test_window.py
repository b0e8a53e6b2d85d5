"""When a window is open: hours as people write them, in time zones, without holidays."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bide
from bide.model.calendar_file import DAYS_AHEAD, MAX_FILE, whole_days
from bide.model.limits import MAX_RULE
from bide.model.time_rule import TimeRule, time_rule_of, window_of
from bide.model.times import LATEST
from bide.model.window import LONGEST_HOURS, MAX_HOLIDAYS, Window
from tests.counting import count_calls

HOUR = 3_600_000
DAY = 24 * HOUR
OFFICE = "Mon-Fri 09:00-18:00"
CHRISTMAS = ["2026-12-24", "2026-12-25", "2026-12-26"]


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """Return a local time in Unix milliseconds."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(local.timestamp() * 1000)


def shown(moment: int, zone: str = "UTC") -> str:
    """Return what a clock shows at a time."""
    return f"{datetime.fromtimestamp(moment / 1000, ZoneInfo(zone)):%a %Y-%m-%d %H:%M:%S %z}"


# 2026-12-07 is a Monday.


@pytest.mark.parametrize(
    ("hours", "moment", "opening", "closing"),
    [
        (OFFICE, "2026-12-07T08:59:59", "Mon 2026-12-07 09:00", "Mon 2026-12-07 18:00"),
        (OFFICE, "2026-12-07T09:00", "Mon 2026-12-07 09:00", "Mon 2026-12-07 18:00"),
        (OFFICE, "2026-12-07T18:00", "Tue 2026-12-08 09:00", "Tue 2026-12-08 18:00"),
        (OFFICE, "2026-12-11T18:00", "Mon 2026-12-14 09:00", "Mon 2026-12-14 18:00"),
        ("Sat-Sun", "2026-12-11T18:00", "Sat 2026-12-12 00:00", "Mon 2026-12-14 00:00"),
        ("Sat, Sun", "2026-12-11T18:00", "Sat 2026-12-12 00:00", "Mon 2026-12-14 00:00"),
        ("Sun-Mon", "2026-12-11T18:00", "Sun 2026-12-13 00:00", "Tue 2026-12-15 00:00"),
        ("22:00-06:00", "2026-12-07T12:00", "Mon 2026-12-07 22:00", "Tue 2026-12-08 06:00"),
        ("22:00-06:00", "2026-12-08T05:59", "Tue 2026-12-08 05:59", "Tue 2026-12-08 06:00"),
        ("Sun 22:00-06:00", "2026-12-07T12:00", "Sun 2026-12-13 22:00", "Mon 2026-12-14 06:00"),
        ("Fri 22:00-Sat 06:00", "2026-12-07", "Fri 2026-12-11 22:00", "Sat 2026-12-12 06:00"),
        ("Fri 22:00-Mon 06:00", "2026-12-13", "Sun 2026-12-13 00:00", "Mon 2026-12-14 06:00"),
        ("Sun 22:00-Mon 06:00", "2026-12-07", "Mon 2026-12-07 00:00", "Mon 2026-12-07 06:00"),
        ("Fri 18:00-Thu 09:00", "2026-12-10T12", "Fri 2026-12-11 18:00", "Thu 2026-12-17 09:00"),
        ("09:00-12:00, 13:00-18:00", "2026-12-07T12", "Mon 2026-12-07 13:00", "Mon 2026-12-07 18"),
        ("00:00-24:00", "2026-12-07", "Mon 2026-12-07 00:00", "never"),
        ("Mon-Sun", "2026-12-07", "Mon 2026-12-07 00:00", "never"),
        ("Mon-Fri 9-12; Fri 10-14", "2026-12-11T09", "Fri 2026-12-11 09", "Fri 2026-12-11 14"),
        ("20:00-24:00; 00:00-02:00", "2026-12-07T21", "Mon 2026-12-07 21", "Tue 2026-12-08 02"),
    ],
)
def test_it_opens_and_closes(hours: str, moment: str, opening: str, closing: str) -> None:
    window = Window(hours)
    opens = window.opening(at(moment))
    assert shown(opens).startswith(opening)
    closes = window.closing(opens)
    assert closing == "never" if closes is None else shown(closes).startswith(closing)


@pytest.mark.parametrize(
    ("hours", "usual"),
    [
        ("mon-fri 9-18", OFFICE),
        ("  MONDAY - friday   9:00 - 18:00 ", OFFICE),
        ("Mon\u2013Fri 09:00\u201318:00", OFFICE),
        ("Tues 9-10, wednesday 9-10; Thurs", "Tue 09:00-10:00, Wed 09:00-10:00; Thu"),
        ("Thur, saturday", "Thu, Sat"),
        ("Mon-Fri 9-12,13-18;Sat 10-14", "Mon-Fri 09:00-12:00, 13:00-18:00; Sat 10:00-14:00"),
        ("Mon-Fri 9-18, Sat 10-14", "Mon-Fri 09:00-18:00, Sat 10:00-14:00"),
        ("mon, wed 9-12, 13-18", "Mon, Wed 09:00-12:00, 13:00-18:00"),
        ("9-18", "09:00-18:00"),
        ("sun-sun", "Sun"),
        ("fri 22-mon 6", "Fri 22:00-Mon 06:00"),
    ],
)
def test_hours_are_kept_in_their_usual_form(hours: str, usual: str) -> None:
    assert Window(hours).hours == usual
    assert Window(usual).hours == usual


def test_days_without_times_share_those_that_follow() -> None:
    window = Window("Mon, Wed 9-12, 13-18, Sat")
    assert window.is_open(at("2026-12-07T13:00"))
    assert not window.is_open(at("2026-12-07T12:00"))
    assert window.is_open(at("2026-12-09T09:00"))
    assert not window.is_open(at("2026-12-08T09:00"))
    assert window.is_open(at("2026-12-12T03:00"))


@pytest.mark.parametrize(
    ("hours", "why"),
    [
        ("", "it is empty"),
        ("Mon-Fri;", "it is empty"),
        ("Mon-Fri 09:00", "'mon-fri 09:00' is neither days nor times"),
        ("Mo-Fr 9-18", "'mo-fr 9-18' is neither days nor times"),
        ("Mon-Fri 09:00-18:00 CET", "is neither days nor times"),
        ("Mon 25-26", "25 is not a time of the day"),
        ("Mon 09:60-10:00", "09:60 is not a time of the day"),
        ("Mon 24:00-06:00", "24:00 is not a time of the day"),
        ("Mon 09:00-09:00", "a span ends when it begins"),
        ("Mon 09:00-Mon 09:00", "a span ends when it begins"),
        ("Fri 22:00-Sat 06:00, 10:00-12:00", "'10:00-12:00' names no day"),
        ("Mon," * 70, f"is longer than {LONGEST_HOURS} characters"),
        (",".join(f"{hour}-{hour}:30" for hour in range(24)), "is longer than 256 characters"),
    ],
)
def test_hours_that_cannot_be_read_say_why(hours: str, why: str) -> None:
    with pytest.raises(bide.InvalidArgument, match="window=.*" + why):
        Window(hours)


def test_other_arguments_are_checked() -> None:
    for arguments, why in [
        ((9,), "the hours of a window must be a str, not 9"),
        ((OFFICE, "Europe/Atlantis"), "timezone='Europe/Atlantis' is not known here"),
        ((OFFICE, "UTC", 5), "holidays=5 must be a list of dates"),
        ((OFFICE, "UTC", ["25.12.2026"]), "'25.12.2026' is not a date"),
        ((OFFICE, "UTC", [datetime(2026, 12, 25, tzinfo=UTC)]), "is not a date"),
        ((OFFICE, "UTC", ["0999-12-25"]), "0999-12-25 is not from 1970 to 2100"),
        ((OFFICE, "UTC", "nowhere.ics"), "holidays='nowhere.ics' cannot be read"),
    ]:
        with pytest.raises(bide.InvalidArgument) as caught:
            Window(*arguments)  # type: ignore[arg-type]
        assert why in str(caught.value)
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(MAX_HOLIDAYS + 1)]
    assert len(Window(OFFICE, holidays=days[:-1]).holidays) == MAX_HOLIDAYS
    with pytest.raises(bide.InvalidArgument, match="more than 1,000 dates"):
        Window(OFFICE, holidays=days)


@pytest.mark.parametrize(
    ("hours", "moment", "opening"),
    [
        # Clocks go from 02:00 to 03:00 on 2026-03-29.
        ("01:00-04:00", "2026-03-29T03:00+02:00", "03:00:00 +0200"),
        ("02:30-05:00", "2026-03-29T01:59+01:00", "03:00:00 +0200"),
        ("02:15-02:45", "2026-03-28T12:00+01:00", "Mon 2026-03-30 02:15:00 +0200"),
        ("03:00-04:00", "2026-03-29T01:00+01:00", "03:00:00 +0200"),
        # From 03:00 to 02:00 on 2026-10-25.
        ("02:15-02:45", "2026-10-25T00:00+02:00", "02:15:00 +0200"),
        ("02:15-02:45", "2026-10-25T02:45+02:00", "02:15:00 +0100"),
        ("02:15-02:45", "2026-10-25T02:45+01:00", "Mon 2026-10-26 02:15:00 +0100"),
        ("01:00-02:30", "2026-10-25T02:30+02:00", "02:00:00 +0100"),
        ("03:00-04:00", "2026-10-25T02:59+02:00", "03:00:00 +0100"),
    ],
)
def test_it_is_open_while_the_wall_clock_shows_its_times(
    hours: str, moment: str, opening: str
) -> None:
    start = round(datetime.fromisoformat(moment).timestamp() * 1000)
    opens = Window(hours, "Europe/Berlin").opening(start)
    assert opening in shown(opens, "Europe/Berlin")


def test_it_closes_by_the_wall_clock_too() -> None:
    repeated = Window("01:00-02:30", "Europe/Berlin")
    first = at("2026-10-25T02:30", "Europe/Berlin")
    assert repeated.closing(at("2026-10-25T01:30", "Europe/Berlin")) == first
    again = repeated.opening(first)
    assert again == first + HOUR // 2
    assert repeated.closing(again) == again + HOUR // 2
    skipped = Window("01:00-02:30", "Europe/Berlin")
    assert shown(
        skipped.closing(at("2026-03-29T01:30", "Europe/Berlin")) or 0, "Europe/Berlin"
    ).endswith("03:00:00 +0200")


@pytest.mark.parametrize(
    ("zone", "moment", "opening"),
    [
        ("Pacific/Kiritimati", "2026-12-06T19:00", "2026-12-06T19:00"),  # +14: Monday 09:00
        ("Pacific/Kiritimati", "2026-12-06T18:59", "2026-12-06T19:00"),
        ("Etc/GMT+12", "2026-12-07T18:00", "2026-12-07T21:00"),  # -12: Monday 06:00
        ("Asia/Kathmandu", "2026-12-07T00:00", "2026-12-07T03:15"),
        ("Australia/Lord_Howe", "2026-12-06T21:00", "2026-12-06T22:00"),
    ],
)
def test_it_counts_in_its_zone(zone: str, moment: str, opening: str) -> None:
    assert Window(OFFICE, zone).opening(at(moment)) == at(opening)


def test_a_zone_that_skips_a_day() -> None:
    window = Window("Fri 09:00-10:00", "Pacific/Apia")  # there was no Friday 2011-12-30
    assert shown(window.opening(at("2011-12-29T12", "Pacific/Apia")), "Pacific/Apia") == (
        "Fri 2012-01-06 09:00:00 +1400"
    )


def test_holidays_are_whole_days_in_the_zone() -> None:
    window = Window("Mon-Fri 09:00-18:00; 22:00-06:00", "Europe/Berlin", holidays=CHRISTMAS)
    berlin = "Europe/Berlin"
    before = at("2026-12-23T23:00", berlin)
    assert window.is_open(before)
    assert shown(window.closing(before) or 0, berlin).startswith("Thu 2026-12-24 00:00")
    after = window.opening(at("2026-12-24", berlin))
    assert shown(after, berlin).startswith("Sun 2026-12-27 00:00")


def test_it_opens_after_any_number_of_holidays() -> None:
    mondays = [date(2026, 12, 7) + timedelta(weeks=number) for number in range(MAX_HOLIDAYS)]
    window = Window("Mon 09:00-10:00", "America/New_York", holidays=mondays)
    opens = datetime.fromtimestamp(window.opening(at("2026-12-01")) / 1000, UTC)
    assert opens.date() == mondays[-1] + timedelta(weeks=1)
    assert Window("Mon-Sun", holidays=["2026-12-25"]).closing(at("2026-12-01")) == at("2026-12-25")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Africa/Casablanca"])
def test_what_is_far_away_costs_little(zone: str) -> None:
    """The clocks of a zone change a few times a year."""
    now, century_ends = at("2026-12-01"), ["2099-12-25"]
    window = Window("Mon-Sun", zone, century_ends)
    assert count_calls(lambda: window.closing(now)).total() < 50_000
    assert count_calls(lambda: window.closing(now + DAY)).total() < 10
    other = Window("Mon-Sun", zone, century_ends)
    assert count_calls(lambda: list(other.closed_between(now, now + HOUR))).total() < 100
    days = [date(2026, 12, 1) + timedelta(days=number) for number in range(MAX_HOLIDAYS)]
    closed = Window("Mon-Sun", zone, days)
    assert count_calls(lambda: closed.opening(now + DAY)).total() < 3_000
    hours = range(now + DAY, now + 900 * DAY, HOUR)
    openings = count_calls(lambda: [closed.opening(hour) for hour in hours])
    assert openings.total() < 2 * len(hours)
    assert openings["utcoffset"] == 0
    other = Window("Mon-Sun", zone, days)
    assert count_calls(lambda: other.closed_since(now + 600 * DAY)).total() < 5_000
    assert count_calls(lambda: [closed.closed_since(hour) for hour in hours])["opening"] < 100


def test_the_end_of_times_is_open() -> None:
    assert Window("Mon").opening(LATEST) == LATEST
    assert Window("Mon").opening(LATEST - 1) == LATEST


def test_when_it_was_closed() -> None:
    window = Window(OFFICE)
    monday = at("2026-12-14T09:00")
    closed = at("2026-12-11T18:00")
    assert window.closed_since(monday) == closed
    assert window.closed_since(monday - HOUR) == closed
    assert window.closed_since(monday + 1) == monday + 1
    assert list(window.closed_between(closed - HOUR, monday + 10 * HOUR)) == [
        (closed, monday),
        (monday + 9 * HOUR, monday + 10 * HOUR),
    ]


def test_it_is_shown_in_words() -> None:
    window = Window(OFFICE, "Europe/Berlin", [*CHRISTMAS, "2027-01-01", "2027-05-01"])
    assert str(window) == (
        "Mon-Fri 09:00-18:00 in Europe/Berlin, but not on 2026-12-24, 2026-12-25, 2026-12-26 and "
        "2 more"
    )
    assert window == Window(OFFICE.lower(), "Europe/Berlin", reversed(window.holidays))
    assert len({window, Window(OFFICE, "Europe/Berlin")}) == 2


# As the rule of a message.

zones = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Chatham"])
dates = st.dates(date(2020, 1, 1), date(2030, 12, 31))
days = st.sampled_from(["", "Mon", "Tue-Sat", "Sat-Mon", "Mon, Thu"])
times = st.integers(0, 23).flatmap(
    lambda hour: st.sampled_from([f"{hour}-{(hour + 5) % 24}", f"{hour}:30-{hour}:45"])
)
hours_of_windows = st.builds(lambda day, time: f"{day} {time}".strip(), days, times)
windows = st.builds(Window, hours_of_windows, zones, st.lists(dates, max_size=8))
moments = st.integers(at("2024-01-01"), at("2027-12-31"))


@given(windows)
def test_a_rule_keeps_the_whole_window(window: Window) -> None:
    text = TimeRule(window=window).text
    assert text is not None
    assert len(text) <= MAX_RULE
    assert time_rule_of(text) == TimeRule(window=window)
    hourly = TimeRule(bide.Every("1h"), window=window)
    assert time_rule_of(hourly.text or "") == hourly


@given(windows, moments)
def test_opening_and_closing_are_each_others_bounds(window: Window, moment: int) -> None:
    opens = window.opening(moment)
    assert opens >= moment
    assert window.opening(opens) == opens
    local = datetime.fromtimestamp(opens / 1000, ZoneInfo(window.timezone))
    assert local.date() not in window.holidays
    closes = window.closing(opens)
    assert closes is None or closes > opens
    if opens > moment:
        assert window.closing(moment) == moment
        assert not window.is_open(opens - 1)
        assert window.opening(window.closed_since(moment)) == opens
    if closes is not None:
        assert window.is_open(closes - 1)
        assert not window.is_open(closes)


@given(windows, st.lists(st.integers(0, 60 * 24), min_size=2, max_size=9), moments)
def test_what_was_asked_before_changes_no_answer(
    window: Window, hours: list[int], start: int
) -> None:
    for moment in (start + number * HOUR for number in hours):
        other = Window(window.hours, window.timezone, window.holidays)
        assert window.opening(moment) == other.opening(moment)
        assert window.closing(moment) == other.closing(moment)
        assert window.closed_since(moment) == other.closed_since(moment)


def test_a_rule_says_what_to_do_about_too_many_holidays() -> None:
    days = [date(2026, 1, 1) + timedelta(days=2 * number) for number in range(150)]
    window = Window(OFFICE, "Europe/Berlin", days)
    with pytest.raises(bide.InvalidArgument, match="fewer of the 150 holidays of its window"):
        _ = TimeRule(window=window).text
    assert TimeRule(window=Window(OFFICE, "Europe/Berlin", days[:70])).text
    vacation = [date(2026, 1, 1) + timedelta(days=number) for number in range(1_000)]
    assert TimeRule(window=Window(OFFICE, "Europe/Berlin", vacation)).text


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"window":{"hours":"Mon-Fri","holidays":"2026:1332"}}',
        '{"window":{"hours":"Mon-Fri","holidays":"2026"}}',
        '{"window":{"hours":"Mon-Fri","holidays":"2026:0101-"}}',
        '{"window":{"hours":"Mo"}}',
        '{"window":{"timezone":"UTC"}}',
        '{"window":{"hours":"Mon","sun":true}}',
        '{"window":{"hours":"Mon"},"times":3}',
    ],
)
def test_a_rule_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(bide.InvalidArgument):
        time_rule_of(text)


def test_a_rule_without_a_window_has_none() -> None:
    assert window_of(None) is None
    assert window_of('{"every":"1h"}') is None
    assert TimeRule(None).text is None
    assert TimeRule(None).opening(5) == 5


# Calendar files.


def calendar(*events: str) -> bytes:
    """Return a calendar file."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//tests//bide"]
    for number, event in enumerate(events):
        lines += ["BEGIN:VEVENT", f"UID:{number}", "DTSTAMP:20260101T000000Z"]
        lines += [*event.split("|"), "END:VEVENT"]
    return "\r\n".join([*lines, "END:VCALENDAR", ""]).encode()


def test_whole_day_events_of_a_calendar_are_holidays() -> None:
    text = calendar(
        "DTSTART;VALUE=DATE:20261225|DTEND;VALUE=DATE:20261227|SUMMARY:Christmas",
        "DTSTART;VALUE=DATE:20200101|RRULE:FREQ=YEARLY|SUMMARY:New Year",
        "DTSTART;VALUE=DATE:20270501|SUMMARY:May Day",
        "DTSTART:20261231T100000Z|DTEND:20261231T110000Z|SUMMARY:an appointment",
        "DTSTART;VALUE=DATE:20261228|STATUS:CANCELLED|SUMMARY:called off",
        "DTSTART;VALUE=DATE:20261130|DTEND;VALUE=DATE:20261203|SUMMARY:since yesterday",
        "DTSTART;VALUE=DATE:20350101|SUMMARY:far away",
    )
    assert list(map(str, whole_days(text, date(2026, 12, 1)))) == [
        "2026-12-01",
        "2026-12-02",
        "2026-12-25",
        "2026-12-26",
        "2027-01-01",
        "2027-05-01",
        "2028-01-01",
    ]


def test_a_window_reads_a_calendar_file_when_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "holidays.ics"
    path.write_bytes(calendar("DTSTART;VALUE=DATE:20200601|RRULE:FREQ=DAILY|SUMMARY:no work"))
    window = Window(OFFICE, holidays=path)
    today = datetime.now(UTC).date()
    assert len(window.holidays) == DAYS_AHEAD
    assert today in window.holidays
    assert window == Window(OFFICE, holidays=str(path))


def test_files_that_are_no_calendars_say_so(tmp_path: Path) -> None:
    path = tmp_path / "holidays.ics"
    path.write_text("2026-12-25\n")
    with pytest.raises(bide.InvalidArgument, match=r"holidays\.ics': it is not a calendar"):
        Window(OFFICE, holidays=path)
    path.write_bytes(b" " * (MAX_FILE + 1))
    with pytest.raises(bide.InvalidArgument, match="has more than"):
        Window(OFFICE, holidays=path)
    with pytest.raises(bide.InvalidArgument, match="cannot be read"):
        Window(OFFICE, holidays=tmp_path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "recurring_ical_events", None)
    with pytest.raises(bide.InvalidArgument, match=r"pip install 'bide\[calendars\]'"):
        whole_days(calendar(), date(2026, 12, 1))
