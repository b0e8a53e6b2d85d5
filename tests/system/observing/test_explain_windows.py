"""What explanations say of windows: of a message, and of the handlers."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.model.replies import Explained, Serving
from bide.observing.explanation import Explanation
from bide.observing.sentences import Opening, window_in_words
from bide.testing import FakeClock

FRIDAY = datetime(2026, 12, 11, 16, tzinfo=UTC)
SATURDAY = datetime(2026, 12, 12, 9, tzinfo=UTC)
OFFICE = bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin")
WAITS = "it waits for Monday 09:00: its window is Mon-Fri 09:00-18:00 in Europe/Berlin"
NOW = round(SATURDAY.timestamp() * 1000)
MONDAY = NOW + 47 * 3_600_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(FRIDAY)


@pytest.fixture
def calls(tmp_path: Path, clock: FakeClock) -> Any:
    with bide.Queue("calls", f"sqlite:///{tmp_path}/bide.db", clock=clock) as calls:
        yield calls


def test_a_put_waits_for_the_opening(calls: bide.Queue) -> None:
    calls.put("x", id="a", delay="2h", window=OFFICE)
    told = calls.explain("a")
    assert told.reasons == ("delayed", "window")
    assert told.sentence.endswith(WAITS)
    calls.put("x", id="c", at=datetime(2026, 12, 14, 8, 0, 2, tzinfo=UTC), window=OFFICE)
    assert calls.explain("c").reasons == ("delayed",)
    calls.put("x", id="d", at=datetime(2026, 12, 14, 8, 0, 0, 9_000, tzinfo=UTC), window=OFFICE)
    assert calls.explain("d").sentence.endswith(WAITS)
    calls.put("x", id="b", window=bide.Window("Sat 09:00-10:00", "Europe/Berlin"))
    told = calls.explain("b")
    assert told.reasons == ("delayed", "window")
    assert told.sentence == (
        "b is due at 2026-12-12 08:00:00 UTC, in 16h; it waits for Saturday 09:00: its window is "
        "Sat 09:00-10:00 in Europe/Berlin"
    )
    assert told.in_language("zh").endswith(
        "；等到周六 09:00：投递时段为 Sat 09:00-10:00（Europe/Berlin）"  # noqa: RUF001
    )


def test_what_is_ready_waits_for_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="a", window=OFFICE)
    clock.advance(17 * 3_600)
    told = calls.explain("a")
    assert told.reasons == ("window", "no-worker")
    assert f": {WAITS}; " in told.sentence
    assert calls.claim() == []
    told = calls.explain("a")
    assert told.reasons == ("returned", "window")
    assert told.sentence.endswith(WAITS)


def test_a_time_while_it_is_closed_is_told(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="a", delay="5m", window=OFFICE)
    calls.reschedule("a", at=SATURDAY)
    told = calls.explain("a")
    assert told.reasons == ("delayed", "window")
    assert told.sentence.endswith(WAITS)


def test_a_run_tells_both(calls: bide.Queue, clock: FakeClock) -> None:
    clock.advance(17 * 3_600)
    daily = bide.Cron("0 9 * * *", "Europe/Berlin")
    calls.put("x", id="a", repeat=daily, window=OFFICE)
    told = calls.explain("a")
    assert told.reasons == ("delayed", "window")
    assert told.sentence.endswith(
        f"{WAITS}; it repeats: 0 9 * * * in Europe/Berlin; this run is that of "
        "2026-12-14 08:00:00 UTC, the next one that of 2026-12-15 08:00:00 UTC"
    )
    calls.hold("a")
    assert calls.explain("a").reasons == ("held",)


def test_a_window_that_is_open_explains_nothing(calls: bide.Queue) -> None:
    calls.put("x", id="a", window=OFFICE)
    assert calls.explain("a").reasons == ("no-worker",)


def explained(*workers: Serving, **more: Any) -> Explanation:
    facts = Explained(
        now=NOW, pauses=[], state="ready", due=NOW - 1, workers=list(workers), attempts=3, **more
    )
    return Explanation("a", "calls", facts)


CLOSED = Serving("w1", 4, hours="Mon-Fri 09:00-18:00", timezone="Europe/Berlin", opens=MONDAY)
LATER = Serving("w2", 4, hours="Tue", timezone="UTC", opens=MONDAY + 86_400_000)
BUSY = Serving("w3", 4, 4)
FREE = Serving("w4", 4, hours="Sat", timezone="UTC")


def test_workers_that_wait_for_their_windows() -> None:
    assert explained(LATER, CLOSED).reasons == ("handler-window",)
    assert "wait for Monday 09:00: their window is Mon-Fri 09:00-18:00 in Europe/Berlin" in (
        explained(LATER, CLOSED).sentence
    )
    assert explained(CLOSED, BUSY).reasons == ("busy", "next")
    assert explained(CLOSED, FREE).reasons == ("next",)
    rule = '{"window":{"hours":"Sun"}}'
    assert explained(CLOSED, rule=rule).reasons == ("window", "handler-window")
    assert explained(CLOSED, rule='{"tide":"high"}').reasons == ("handler-window",)


def test_a_zone_that_is_not_known_here_is_utc() -> None:
    assert Opening(MONDAY, "Mars/Olympus", NOW).in_words("en") == "Monday 08:00 UTC"


def test_what_is_far_away_has_a_date() -> None:
    later = MONDAY + round(timedelta(days=7).total_seconds() * 1000)
    assert Opening(later, "UTC", NOW).in_words("en") == "Monday 2026-12-21 08:00"
    assert Opening(later, "UTC", NOW).in_words("zh") == "周一 2026-12-21 08:00"


def test_holidays_in_words() -> None:
    days = [f"2026-12-{day}" for day in (24, 25, 26, 31)]
    window = bide.Window("Mon", holidays=days)
    assert window_in_words(window).endswith("2026-12-25, 2026-12-26 and 1 more")
    assert "另外 1 天" in window_in_words(window, "zh")
    assert window_in_words(bide.Window("Mon", holidays=days[:3])).endswith("12-25, 2026-12-26")
