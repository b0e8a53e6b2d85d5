"""Local dates: which instant they are, and when greater data of time zones plan them anew."""

import zoneinfo
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bide.model.errors import InvalidArgument
from bide.model.local_date import LocalDate, PlannedDate, local_date, planned_date
from bide.model.time_rule import date_of, time_rule_of, with_date
from bide.model.times import unix
from bide.model.zones import forget_zones, is_newer, own_version, own_zones, version_in
from tests.zone_data import NO_SUMMER, TOWN, WITH_SUMMER, machine_with, write_zones


@pytest.mark.parametrize(
    ("date", "timezone", "instant"),
    [
        ("2027-03-28 09:00", "Europe/Paris", "2027-03-28T07:00"),
        ("2027-03-28 01:59:59", "Europe/Paris", "2027-03-28T00:59:59"),
        ("2027-03-28 02:00", "Europe/Paris", "2027-03-28T01:00"),  # the gap begins
        ("2027-03-28 02:30", "Europe/Paris", "2027-03-28T01:00"),
        ("2027-03-28 02:59:59.999", "Europe/Paris", "2027-03-28T01:00"),
        ("2027-03-28 03:00", "Europe/Paris", "2027-03-28T01:00"),  # it ends
        ("2027-10-31 01:59", "Europe/Paris", "2027-10-30T23:59"),
        ("2027-10-31 02:00", "Europe/Paris", "2027-10-31T00:00"),  # twice: the first
        ("2027-10-31 02:30", "Europe/Paris", "2027-10-31T00:30"),
        ("2027-10-31 03:00", "Europe/Paris", "2027-10-31T02:00"),
        ("2027-03-14 02:30", "America/New_York", "2027-03-14T07:00"),
        ("2027-11-07 01:30", "America/New_York", "2027-11-07T05:30"),
        ("2027-10-03 02:15", "Australia/Lord_Howe", "2027-10-02T15:30"),  # half an hour
        ("2027-04-04 01:45", "Australia/Lord_Howe", "2027-04-03T14:45"),
        ("2011-12-30 12:00", "Pacific/Apia", "2011-12-30T10:00"),  # a day that was left out
        ("2027-07-01 12:00", "Asia/Kathmandu", "2027-07-01T06:15"),
        ("2027-09-05 00:00", "America/Santiago", "2027-09-05T04:00"),  # midnight is skipped
        ("2027-07-01", "UTC", "2027-07-01T00:00"),
    ],
)
def test_an_instant(date: str, timezone: str, instant: str) -> None:
    assert local_date(date, timezone).at == datetime.fromisoformat(instant).replace(tzinfo=UTC)


@pytest.mark.parametrize("timezone", ["Europe/Paris", "America/St_Johns", "Australia/Lord_Howe"])
def test_instants_never_go_back_and_show_the_date_unless_it_is_skipped(timezone: str) -> None:
    zone = zoneinfo.ZoneInfo(timezone)
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    before = datetime(2026, 1, 1, tzinfo=UTC)
    while moment.year == 2027:
        naive = moment.replace(tzinfo=None)
        at = local_date(naive, timezone).at
        shown = at.astimezone(zone).replace(tzinfo=None)
        assert at >= before
        # In a gap it is the first time that the clocks show after it.
        skipped = shown - naive
        assert timedelta() <= skipped <= timedelta(hours=1)
        if skipped:
            previous = (at - timedelta(milliseconds=1)).astimezone(zone)
            assert previous.replace(tzinfo=None) < naive
        before, moment = at, moment + timedelta(minutes=15)


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("2027-03-28T09:00", "2027-03-28 09:00"),
        (" 2027-03-28 09:00:30 ", "2027-03-28 09:00:30"),
        (datetime(2027, 3, 28, 9, tzinfo=UTC).replace(tzinfo=None), "2027-03-28 09:00"),
        ("2027-03-28 09:00:00.0001", "2027-03-28 09:00:00.001"),  # never early
        ("20270328T0900", "2027-03-28 09:00"),
    ],
)
def test_forms(at: object, shown: str) -> None:
    date = local_date(at, "Europe/Paris")
    assert str(date) == f"{shown} Europe/Paris"


@pytest.mark.parametrize(
    ("at", "timezone", "error"),
    [
        (None, "UTC", "timezone= goes with a local date"),
        ("soon", "UTC", "at='soon' is not a date and time; write at='2027-03-28 09:00'"),
        (1_800_000_000, "UTC", "at=1800000000 is an instant"),
        ("2027-03-28 09:00+02:00", "Europe/Paris", "has an offset"),
        ("2027-03-28 09:00Z", "Europe/Paris", "has an offset"),
        (datetime(2027, 3, 28, 9, tzinfo=UTC), "Europe/Paris", "has an offset"),
        (datetime(2027, 10, 31, 2, fold=1), "Europe/Paris", "fold=1"),  # noqa: DTZ001
        ("2027-03-28 09:00", "Europe/Pariss", "timezone='Europe/Pariss' is not known here"),
        ("2027-03-28 09:00", "", "timezone='' is not known here"),
        ("2027-03-28 09:00", 1, "timezone must be the name of a zone"),
        ("1969-12-31 09:00", "UTC", "not between 1970 and 2100"),
        ("2101-01-01 09:00", "UTC", "not between 1970 and 2100"),
        ("2100-12-31 23:59:59.9999", "UTC", "not between 1970 and 2100"),
        ("9999-12-31 23:59:59.9999", "Europe/Paris", "not between 1970 and 2100"),
        (datetime.max, "Europe/Paris", "not between 1970 and 2100"),  # noqa: DTZ901
        ("1970-01-01 00:00", "Europe/Paris", "not between 1970 and 2100"),
    ],
)
def test_what_is_no_date(at: object, timezone: object, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error.replace("(", r"\(")):
        local_date(at, timezone)


def test_a_rule_has_a_date() -> None:
    date = PlannedDate(LocalDate("2027-03-28 09:00", "Europe/Paris"), 5, "2026b", 7)
    text = with_date(None, date)
    assert text is not None
    assert (time_rule_of(text).date, date_of(text)) == (date, date)
    assert with_date(text, None) is None
    assert date_of('{"every":"1h"}') is None


@pytest.mark.parametrize(
    "text",
    [
        '{"date":"2027-03-28 09:00"}',
        '{"date":"2027-03-28 09:00","timezone":"UTC"}',
        '{"date":"2027-03-28 09:00","timezone":"UTC","at":0,"zones":"new"}',
        '{"date":"2027-03-28 09:00","timezone":"UTC","at":0,"every":"1h"}',
        '{"every":"1h","zones":"2026b"}',
        '{"every":"1h","at":5}',
        '{"date":"2027-03-28 09:00","timezone":"UTC","at":0,"planet":"Mars"}',
    ],
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(InvalidArgument):
        time_rule_of(text)
    assert date_of(text) is None


def test_greater_data_plan_a_date_anew(tmp_path: Path) -> None:
    old = write_zones(tmp_path / "a", "2026a", {TOWN: WITH_SUMMER})
    new = write_zones(tmp_path / "b", "2026b", {TOWN: NO_SUMMER})
    with machine_with(old):
        assert own_version() == "2026a"
        summer = planned_date("2027-07-01 09:00", TOWN)
        winter = planned_date("2027-01-01 09:00", TOWN)
        assert (summer.at, summer.zones) == (unix(datetime(2027, 7, 1, 7, tzinfo=UTC)), "2026a")
        assert summer.replanned(own_zones()) is None
    with machine_with(new):
        moved = summer.replanned(own_zones())
        assert moved is not None
        assert (moved.at, moved.zones) == (unix(datetime(2027, 7, 1, 8, tzinfo=UTC)), "2026b")
        assert winter.replanned(own_zones()) == winter
    with machine_with(old):  # it does not move back
        assert moved.replanned(own_zones()) is None


def test_the_version_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = write_zones(tmp_path / "unknown", "", {TOWN: NO_SUMMER})
    with machine_with(unknown):
        assert own_version() == ""
        date = planned_date("2027-07-01 09:00", TOWN)
        assert date.zones == ""
    for name, content in (("+VERSION", "2026c\n"), ("version", "2026c"), ("tzdata.zi", "# x\n")):
        folder = write_zones(tmp_path / name, "", {})
        (folder / name).write_text(content)
        assert version_in(folder) == ("" if name == "tzdata.zi" else "2026c")
    zoneinfo.reset_tzpath([])
    forget_zones()
    try:  # of the package tzdata
        assert own_version() > "2020"
        monkeypatch.setattr("tzdata.IANA_VERSION", "custom")
        forget_zones()
        assert own_version() == ""
    finally:
        zoneinfo.reset_tzpath()
        forget_zones()


def test_the_order_of_versions() -> None:
    versions = ["", "1999a", "2025b", "2026a", "2026z", "2026za", "2026zb", "2027a"]
    for number, version in enumerate(versions):
        assert [is_newer(version, other) for other in versions] == [
            number > place for place in range(len(versions))
        ]
