"""Messages with a window: how one is given as options, and how it shows."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result

import bide
from bide.model.message import Message
from tests.system.cli.conftest import Terminal
from tests.system.cli.test_terminal import plain

Bide = Callable[..., Result]

OFFICE = bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin")
OPTIONS = ("--window", "mon-fri 9-18", "--timezone", "Europe/Berlin")
FAR = "2096-10-06T12:00Z"
"""A Saturday."""


def message(queue: bide.Queue, id: str = "a") -> Message:
    found = queue.get(id)
    assert found is not None
    return found


def test_put_in_a_window(run: Bide, orders: bide.Queue) -> None:
    result = run("put", "orders", "1", "--id", "a", "--at", FAR, *OPTIONS)
    assert (result.output, result.exit_code) == ("a\n", 0)
    assert message(orders).window == OFFICE
    assert f"{message(orders).due_at:%a %H:%M}" == "Mon 07:00"
    run("put", "orders", "--lines", "--at", FAR, "--window", "Sat", stdin="1\n2\n")
    assert len(list(orders.scan(before=datetime(2096, 10, 7, tzinfo=UTC)))) == 2


def test_a_local_date_and_a_window_have_one_zone(run: Bide, orders: bide.Queue) -> None:
    day = ("--at", "2096-10-06 12:00")  # a Saturday
    result = run("put", "orders", "1", "--id", "a", *day, *OPTIONS)
    assert (result.output, result.exit_code) == ("a\n", 0)
    assert message(orders).window == OFFICE
    planned = message(orders).local_date
    assert planned is not None
    assert (planned.date, planned.timezone) == ("2096-10-06 12:00", "Europe/Berlin")
    assert f"{message(orders).due_at:%a %H:%M}" == "Mon 07:00"
    edited = run("edit", "orders", "a", *day, *OPTIONS)
    assert "give the time as an instant" in edited.output
    without_zone = run("put", "orders", "1", *day, "--window", "mon-fri 9-18")
    assert without_zone.exit_code == 2


def test_put_in_a_window_with_a_rule(run: Bide, orders: bide.Queue) -> None:
    cron = ("--cron", "0 12 * * *")
    holidays = ("--holidays", "2096-10-08,2096-10-09")
    run(
        "put",
        "orders",
        "1",
        "--id",
        "a",
        "--start",
        "2096-10-06T00:00Z",
        *cron,
        *OPTIONS,
        *holidays,
    )
    assert message(orders).repeat == bide.Cron(
        "0 12 * * *", "Europe/Berlin", start=datetime(2096, 10, 6, tzinfo=UTC)
    )
    found = message(orders).window
    assert found is not None
    assert list(map(str, found.holidays)) == ["2096-10-08", "2096-10-09"]
    assert f"{message(orders).due_at:%a %H:%M}" == "Wed 07:00"
    run("put", "orders", "1", "--id", "b", "--every", "1h", *OPTIONS)
    assert message(orders, "b").window == OFFICE
    assert message(orders, "b").repeat == bide.Every("1h")


def test_holidays_of_a_calendar_file(run: Bide, orders: bide.Queue, tmp_path: Path) -> None:
    path = tmp_path / "holidays.ics"
    day = date.today() + timedelta(days=30)  # noqa: DTZ011
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:x",
        "BEGIN:VEVENT",
        "UID:1",
        "DTSTAMP:20260101T000000Z",
        f"DTSTART;VALUE=DATE:{day:%Y%m%d}",
        "END:VEVENT",
        "END:VCALENDAR",
        "",
    ]
    path.write_text("\r\n".join(lines))
    run("put", "orders", "1", "--id", "a", *OPTIONS, "--holidays", str(path))
    found = message(orders).window
    assert found is not None
    assert found.holidays == (day,)


def test_edit_changes_the_window_and_keeps_the_rest(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", at=datetime.fromisoformat(FAR), repeat=bide.Every("1d"))
    assert run("edit", "orders", "a", *OPTIONS).exit_code == 0
    assert (message(orders).window, message(orders).repeat) == (OFFICE, bide.Every("1d"))
    run("edit", "orders", "a", "--no-repeat")
    assert (message(orders).window, message(orders).repeat) == (OFFICE, None)
    run("edit", "orders", "a", "--no-window")
    assert message(orders).rule is None
    refused = run("edit", "orders", "a", "--no-window", *OPTIONS)
    assert "--window and --no-window cannot be used together" in refused.output


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--window", "Mo-Fr"), "'Mo-Fr' is not valid: 'mo-fr' is neither days nor times"),
        (("--window", "Mon", "--timezone", "Europe/Berlim"), "did you mean 'Europe/Berlin'?"),
        (("--window", "Mon", "--holidays", "no.ics"), "'no.ics' cannot be read"),
        (("--window", "Mon", "--holidays", "2026-02-30"), "'2026-02-30' is not a date"),
        (("--holidays", "2026-12-25"), "--holidays goes with --window"),
        (("--timezone", "UTC"), "--timezone goes with --cron or --window"),
        (("--every", "1h", "--timezone", "UTC"), "--timezone goes with --cron or --window"),
    ],
)
def test_options_that_make_no_window_are_refused(
    run: Bide, options: tuple[str, ...], error: str
) -> None:
    result = run("put", "orders", "1", *options)
    assert result.exit_code == 2
    assert error in " ".join(result.output.split())


def test_get_tells_the_window(run: Bide, orders: bide.Queue, terminal: Terminal) -> None:
    with_holiday = bide.Window("Sat-Sun", holidays=["2096-10-06"])
    orders.put(1, id="a", at=datetime.fromisoformat(FAR), window=with_holiday)
    sheet = plain(terminal("get", "orders", "a")[0])
    assert "window  Sat-Sun in UTC, but not on 2096-10-06" in sheet
    facts = json.loads(run("get", "orders", "a", "--json").output)
    assert facts["window"] == {"hours": "Sat-Sun", "timezone": "UTC", "holidays": ["2096-10-06"]}
    assert facts["window_in_words"] == "Sat-Sun in UTC, but not on 2096-10-06"
    orders.put(1, id="b")
    assert "window" not in json.loads(run("get", "orders", "b", "--json").output)


def test_explain_tells_when_it_opens(run: Bide, orders: bide.Queue) -> None:
    day = datetime.now(UTC) + timedelta(days=2)
    orders.put(1, id="a", window=bide.Window(f"{day:%a} 09:00-10:00"))
    told = run("explain", "orders", "a").output
    assert f"it waits for {day:%A} 09:00: its window is {day:%a} 09:00-10:00 in UTC" in told


def test_run_now_says_when_a_closed_window_opens(
    run: Bide, orders: bide.Queue, terminal: Terminal
) -> None:
    not_today = f"{datetime.now(UTC) + timedelta(days=3):%a}"
    orders.put(1, id="a", repeat=bide.Every("365d"), window=bide.Window(not_today, "UTC"))
    screen = plain(terminal("run-now", "orders", "a")[0])
    assert screen.startswith("✓ a run: it is delayed, due ")


def test_workers_and_tasks_show_the_window(run: Bide, tmp_path: Path) -> None:
    (tmp_path / "office.py").write_text(
        "import bide\n"
        "app = bide.App()\n"
        '@app.task(window=bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin"))\n'
        "def call(number: str) -> None: ...\n"
    )
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        told = run("tasks", "office:app", "--json").output
    finally:
        sys.path.remove(str(tmp_path))
    assert json.loads(told)["window"] == str(OFFICE)
