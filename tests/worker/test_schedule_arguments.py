"""What a schedule may be registered with, and what is refused when the app is made."""

import sys
from typing import Any

import pytest

import bide


def report(tick: bide.Tick) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a schedule needs cron= or every=, and not both"),
        ({"cron": "0 9 * * *", "every": "1h"}, "a schedule needs cron= or every=, and not both"),
        ({"cron": "0 25 * * *"}, "cron='0 25 [*] [*] [*]' is not valid: bad hour"),
        ({"cron": "0 9 * * *", "timezone": "Asia/Nowhere"}, "timezone='Asia/Nowhere' is not known"),
        ({"every": 0}, "every=0 must be 100 ms or longer"),
        ({"every": "1h", "missed": "never"}, 'missed=\'never\' must be "once", "all" or "skip"'),
        ({"every": "1h", "grace": "later"}, "grace='later' is not a valid duration"),
        ({"every": "1h", "lease": 0}, "lease=0s must be between"),
        ({"every": "1h", "timeout": 0}, "timeout must be longer than 0"),
        ({"every": "1h", "retry": 3}, "retry=3 must be a bide.Backoff"),
        ({"every": "1h", "queue": "?"}, "is not a valid name of a queue"),
    ],
)
def test_what_cannot_be_is_refused_when_the_app_is_made(options: dict[str, Any], said: str) -> None:
    app = bide.App("memory://")
    given: dict[str, Any] = {"queue": "reports", **options}
    with pytest.raises(bide.InvalidArgument, match=said):
        app.schedule(given.pop("queue"), **given)(report)
    assert not app.queue_handlers


def test_a_function_that_takes_more_than_a_tick_is_refused() -> None:
    app = bide.App("memory://")
    more: Any = lambda tick, more: None  # noqa: E731
    with pytest.raises(bide.InvalidArgument, match=r"too many arguments; a schedule takes \(tick"):
        app.schedule("reports", every="1h")(more)


def test_a_queue_is_taken_once() -> None:
    app = bide.App("memory://")
    app.schedule("reports", every="1h")(report)
    assert list(app.schedules) == list(app.queue_handlers) == ["reports"]
    with pytest.raises(bide.InvalidArgument, match="a schedule needs its own queue"):
        app.schedule("reports", every="2h")(report)
    with pytest.raises(bide.InvalidArgument, match=r"handled by .*report already"):
        app.handler("reports")(report)
    with pytest.raises(bide.InvalidArgument, match="has a plain handler already"):

        @app.job("reports")
        class Report(bide.Job):
            def run(self) -> None: ...


def test_without_the_library_the_app_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=r"pip install 'bide\[schedules\]'"):
        app.schedule("reports", cron="0 9 * * *")
    app.schedule("reports", every="1h")(report)
