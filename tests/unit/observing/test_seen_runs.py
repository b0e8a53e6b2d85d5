"""What is seen of the run of a message that repeats."""

from typing import Any

import pytest

from bide.model.message import Message
from bide.model.repeat import Cron, Every, Repeat
from bide.model.runs import Run
from bide.model.time_rule import TimeRule
from bide.model.times import LATEST
from bide.model.window import Window
from bide.observing.seen_runs import SeenRun, is_held, repeats, run_of, see_run
from bide.observing.sentences import rule_in_words

HOUR = 3_600_000
NOW = 1_700_000_000_000 // HOUR * HOUR
"""A full hour."""


def seen(
    rule: Repeat, run: Run | str, *, due: int | None = None, begun: int | None = None, **more: Any
) -> SeenRun:
    text = run if isinstance(run, str) else run.text
    if due is None:
        due = run.due if isinstance(run, Run) else NOW
    return see_run(rule.text, text, due=due, now=NOW, begun=begun, **{"is_new": True, **more})


def test_a_run_that_is_to_come_is_followed_by_the_next_time() -> None:
    run = seen(Every("1h"), Run(NOW + HOUR))
    assert (run.status, run.at, run.next, run.left) == ("planned", NOW + HOUR, NOW + 2 * HOUR, None)
    assert (run.is_last, run.is_held) == (False, False)


def test_a_run_that_was_moved_is_followed_by_a_time_after_it() -> None:
    run = seen(Every("1h"), Run(NOW + HOUR), due=NOW + 5 * HOUR + 1)
    assert (run.at, run.next) == (NOW + HOUR, NOW + 6 * HOUR)


def test_a_run_that_takes_long_is_followed_by_what_it_has_missed() -> None:
    late = Run(NOW - 3 * HOUR)
    assert seen(Every("1h"), late, begun=NOW - 2 * HOUR, is_new=False).next == NOW
    every_run = Every("1h", missed="all")
    assert seen(every_run, late, begun=NOW, is_new=False).next == NOW - 2 * HOUR
    left_out = Every("1h", missed="skip")
    assert seen(left_out, late, begun=NOW - 2 * HOUR, is_new=False).next == NOW + HOUR


def test_runs_that_were_missed_are_seen_as_the_one_that_is_delivered() -> None:
    first = Run(NOW - 4 * HOUR)
    waits = seen(Every("1h"), first)
    assert (waits.at, waits.next) == (NOW, NOW + HOUR)
    begun = seen(Every("1h"), first, begun=NOW - HOUR)
    assert (begun.at, begun.next) == (NOW - HOUR, NOW)
    assert seen(Every("1h", missed="all"), first).at == first.at
    assert seen(Every("1h"), first, is_new=False).at == first.at  # of a retry it is not known
    put_off = seen(Every("1h"), first, due=NOW + 2 * HOUR, planned=first.at)
    assert (put_off.at, put_off.next) == (NOW + 2 * HOUR, NOW + 3 * HOUR)
    assert seen(Every("1h"), Run(NOW + HOUR), due=NOW + 5 * HOUR).at == NOW + HOUR
    window = Window("00:00-02:00")
    closed = see_run(
        TimeRule(Every("1h"), window=window).text or "",
        first.text,
        due=first.due,
        now=NOW,
        begun=None,
        is_new=True,
    )
    opening = window.opening(NOW)
    assert opening > NOW
    assert (closed.at, closed.next) == (opening, opening + HOUR)


def test_the_last_run_is_followed_by_none() -> None:
    run = seen(Every("1h", times=3), Run(NOW + HOUR, left=1))
    assert (run.is_last, run.next, run.left) == (True, None, 1)
    assert seen(Every("1h", until=NOW / 1000 + 3_600), Run(NOW + HOUR)).is_last


def test_one_that_is_held_waits() -> None:
    run = seen(Every("1h", times=3), Run(NOW + HOUR, left=3, held=True))
    assert (run.status, run.is_held, run.next, run.is_last) == ("held", True, None, False)


def test_one_that_is_held_may_run_once() -> None:
    run = seen(Every("1h"), Run(NOW, held=True), due=NOW)
    assert (run.status, run.is_held, run.next, run.is_last) == ("planned", True, None, False)
    last = seen(Every("1h", times=1), Run(NOW, left=1, held=True), due=NOW)
    assert (last.is_held, last.is_last) == (False, True)


def test_a_run_that_is_over_waits_to_be_planned() -> None:
    run = seen(Every("1h"), "ended " + Run(NOW - HOUR).text)
    assert (run.status, run.at, run.next) == ("ended", NOW - HOUR, NOW + HOUR)
    last = seen(Every("1h", times=1), "ended " + Run(NOW - HOUR, left=1).text)
    assert (last.status, last.is_last) == ("ended", True)


def test_a_run_that_nobody_began_in_time_is_left_out() -> None:
    rule = Every("1h", missed="skip", times=2)
    run = seen(rule, Run(NOW - HOUR, left=1))
    assert (run.status, run.next, run.left, run.is_last) == ("missed", NOW // HOUR * HOUR, 1, False)
    assert seen(rule, Run(NOW - HOUR, left=2), is_new=False).status == "planned"
    assert seen(rule, Run(NOW - HOUR + 1, left=2), due=NOW).status == "planned"
    assert seen(Every("1h"), Run(NOW - 5 * HOUR)).status == "planned"


@pytest.mark.parametrize(("rule", "run"), [('{"moon":"full"}', "2"), ('{"every":"1h"}', "soon")])
def test_what_cannot_be_read_here_says_why(rule: str, run: str) -> None:
    status = see_run(rule, run, due=NOW, now=NOW, begun=None, is_new=True)
    assert (status.status, status.rule) == ("unread", rule)
    assert status.error


def message(**fields: Any) -> Message:
    usual: dict[str, Any] = {
        "id": "a",
        "queue": "q",
        "data": b"1",
        "json": True,
        "due": NOW,
        "priority": 0,
        "attempt": 0,
        "attempts": 10,
        "state": "delayed",
        "rule": '{"every":"1h"}',
        "run": Run(NOW).text,
    }
    return Message(**usual | fields)


def test_what_has_ended_repeats_no_longer() -> None:
    assert repeats(message())
    assert repeats(message(state="dead"))
    assert not repeats(message(state="acked"))
    assert not repeats(message(state="expired"))
    assert not repeats(message(rule=None, run=None))
    assert run_of(message()) == Run(NOW)
    assert run_of(message(state="acked")) is None
    assert run_of(message(run="soon")) is None


def test_one_is_held_while_no_run_is_due() -> None:
    held = Run(NOW, held=True).text
    assert is_held(message(run=held, due=LATEST))
    assert not is_held(message(run=held))
    assert not is_held(message(due=LATEST))
    assert not is_held(message(run=held, due=LATEST, state="acked"))


@pytest.mark.parametrize(
    ("rule", "english", "chinese"),
    [
        (
            Cron("0 9 * * MON", "Europe/Berlin", times=10),
            "0 9 * * MON in Europe/Berlin, 10 times",
            "0 9 * * MON（Europe/Berlin），共 10 次",  # noqa: RUF001
        ),
        (
            Every("90s", start=1e9, until=2e9, times=1, missed="all"),
            "every 1m30s, from 2001-09-09 01:46:40 UTC, until 2033-05-18 03:33:20 UTC, 1 time, "
            "each missed run is delivered",
            "每 1m30s，自 2001-09-09 01:46:40 UTC 起，至 2033-05-18 03:33:20 UTC，共 1 次，"  # noqa: RUF001
            "错过的运行逐次补上",
        ),
        (
            Every("1d", missed="skip"),
            "every 1d, missed runs are left out",
            "每 1d，错过的运行不补",  # noqa: RUF001
        ),
    ],
)
def test_a_rule_in_words(rule: Repeat, english: str, chinese: str) -> None:
    assert rule_in_words(rule.text) == english
    assert rule_in_words(rule.text, "zh") == chinese
    assert rule_in_words("{}", "zh") == "{}"
