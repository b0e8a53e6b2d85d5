"""Messages that repeat: rules as data, which run comes next, what of a claim is not delivered."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

import bide
from bide.model.commands import NextRun
from bide.model.limits import MAX_NAME, MAX_RUN
from bide.model.message import RUN_ENDED, Failure, Message, NewMessage
from bide.model.repeat import MAX_TIMES, Repeat, repeat
from bide.model.runs import (
    MAX_REPEATED_ID,
    Renewal,
    Run,
    after_ack,
    check_rule_and_run,
    dead_letter,
    delivered_run,
    first_run,
    first_run_of,
    following,
    renewal,
)
from bide.model.time_rule import repeat_of
from bide.model.times import LATEST, unix
from tests.effort import effort
from tests.unit.model.random_rules import difference, random_rule

HOUR = 3_600_000
NOON = unix(datetime(2026, 3, 2, 12, tzinfo=UTC))  # a Monday
BERLIN = "Europe/Berlin"


def hourly(**bounds: Any) -> bide.Every:
    return bide.Every("1h", **bounds)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def then(hours: float, left: int | None = None, *, held: bool = False) -> Run:
    """Return the run that comes so many hours after that of noon."""
    return Run(NOON + round(hours * HOUR), left, held, NOON)


# Rules.


@pytest.mark.parametrize(
    "rule",
    [
        bide.Every("15m"),
        bide.Every(0.1),
        bide.Every(timedelta(days=400, milliseconds=1), start=NOON / 1000, until=at(LATEST)),
        bide.Cron("0 9 * * MON", BERLIN),
        bide.Cron("@daily"),
        bide.Cron(
            "*/5 9-17 * * MON-FRI", "America/Argentina/Buenos_Aires", start=0, until=at(NOON)
        ),
        bide.Cron("0 9 1 * *", times=MAX_TIMES, missed="skip"),
        bide.Every("1d", missed="all", grace="90s"),
    ],
    ids=str,
)
def test_a_rule_is_the_same_after_it_was_text(rule: Repeat) -> None:
    assert repeat_of(rule.text) == rule
    assert hash(repeat_of(rule.text)) == hash(rule)
    assert eval(repr(rule), {**vars(bide), "datetime": __import__("datetime")}) == rule


def test_a_rule_tells_people_when() -> None:
    rule = bide.Cron(
        "0  9 * * MON", BERLIN, start=NOON / 1000, until=at(NOON), times=3, missed="skip"
    )
    assert str(rule) == (
        "0 9 * * MON in Europe/Berlin, from 2026-03-02T12:00:00.000Z, until "
        "2026-03-02T12:00:00.000Z, 3 times, missed runs: skip"
    )
    assert str(bide.Every("90s")) == "every 1m30s"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: bide.Cron("0 25 * * *"), "cron='0 25"),
        (lambda: bide.Cron("0 9 * *"), "it has 4 fields, not 5"),
        (
            lambda: bide.Cron("0 9 * * *", "Europe/Berlinn"),
            "timezone='Europe/Berlinn'",
        ),
        (lambda: bide.Cron(cast("Any", 9)), "cron must be a str, not int"),
        (lambda: bide.Every("50ms"), "must be 100 ms or longer"),
        (lambda: bide.Every("soon"), "every='soon' is not a valid duration"),
        (lambda: bide.Every(-1), "every=-1 is negative"),
        (lambda: hourly(times=0), "times"),
        (lambda: hourly(times=True), "times"),
        (
            lambda: hourly(start=NOON / 1000, until=0),
            "00.000Z is before start",
        ),
        (lambda: hourly(start=at(NOON).replace(tzinfo=None)), "has no time zone"),
        (lambda: hourly(until=30), "until=30"),
        (lambda: hourly(grace=0), "grace=0 must be 100 ms or longer"),
        (lambda: bide.Cron("1" * 5_000 + " 0 * * *"), "longer than 256 characters"),
        (lambda: bide.Cron("*/30 2 25-31 3 */7", BERLIN), "it names no time for 40 years"),
        (lambda: hourly(missed="never"), "missed='never' must be one of once, all, skip"),
        (lambda: repeat(cron="0 9 * * *", every="1h"), "not by both"),
        (lambda: repeat(), "not by both"),
        (lambda: repeat(every="1h", timezone=BERLIN), "a period has none"),
        (lambda: repeat_of("{}"), "not by both"),
        (lambda: repeat_of('{"every":"1h","weekly":1}'), "is not a rule"),
        (lambda: repeat_of("every 1h"), "is not a rule"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_reason(make: Any, text: str) -> None:
    with pytest.raises(bide.InvalidArgument) as caught:
        make()
    assert text in str(caught.value)


def test_start_and_until_are_times_of_a_rule() -> None:
    rule = hourly(start=(NOON + 5) / 1000, until=(NOON + 5 + 2 * HOUR) / 1000)
    times, moment = [], rule.after(0)
    while moment is not None:
        times.append(moment - NOON)
        moment = rule.after(moment)
    assert times == [5, HOUR + 5, 2 * HOUR + 5]
    cron = bide.Cron("0 * * * *", start=at(NOON), until=at(NOON))
    assert (cron.after(0), cron.after(NOON)) == (NOON, None)


def test_random_rules_have_the_times_of_dateutil() -> None:
    chance = Random(43)
    for _ in range(effort(500, 20_000)):
        assert difference(random_rule(chance), 6) == ""


def test_a_time_of_day_stays_when_the_clocks_change() -> None:
    rule = bide.Cron("0 9 * * *", BERLIN)
    moment, hours = unix(datetime(2026, 3, 27, 12, tzinfo=UTC)), []
    for _ in range(3):
        following_time = rule.after(moment)
        assert following_time is not None
        hours.append(at(following_time).astimezone(ZoneInfo(BERLIN)).hour)
        moment = following_time
    assert hours == [9, 9, 9]


# Runs.


@pytest.mark.parametrize(
    "run",
    [
        Run(NOON),
        Run(NOON + 1, 3),
        Run(0, None, True),
        Run(NOON, 9, True),
        Run(NOON, 9, True, NOON, True, "2026a", True),
        Run(NOON, again=True),
        Run(NOON, zones="2026a", opens=NOON + 1),
    ],
)
def test_a_run_is_the_same_after_it_was_text(run: Run) -> None:
    assert Run.of(run.text) == run
    assert Run.of(RUN_ENDED + run.text) == run


def test_the_longest_run_has_room() -> None:
    common: dict[str, Any] = {"at": LATEST, "left": MAX_TIMES, "held": True, "previous": LATEST}
    for run in (
        Run(**common, zones="2026zaa", opens=LATEST),
        Run(**common, added=True, again=True),
    ):
        assert len(RUN_ENDED + run.text) <= MAX_RUN


@pytest.mark.parametrize(
    "text", ["", "1", "ended ", "2026-03-02", "2026-03-02T12:00:00Z left=x", "é"]
)
def test_what_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(bide.InvalidArgument, match="is not a run of a message that repeats"):
        Run.of(text)


def test_the_first_run_is_the_next_time_of_the_rule() -> None:
    assert first_run(hourly(), NOON) == Run(NOON + HOUR)
    assert first_run(hourly(times=3), NOON - 1) == Run(NOON, 3)
    with pytest.raises(bide.InvalidArgument, match=r"every 1h, until .* has no time after"):
        first_run(hourly(until=NOON / 1000), NOON)


def test_the_first_run_may_be_given() -> None:
    message = NewMessage("x", id="a", repeat=hourly(times=2))
    assert first_run_of(message, None, 0, NOON)[1:] == (Run(NOON + HOUR, 2).text, NOON + HOUR)
    assert first_run_of(message, NOON + 5, 0, NOON)[1:] == (Run(NOON + 5, 2).text, NOON + 5)
    delayed = replace(message, delay="7ms")
    assert first_run_of(delayed, None, 7, NOON)[1:] == (Run(NOON + 7, 2).text, NOON + 7)
    at_once = replace(message, delay=0)
    assert first_run_of(at_once, None, 0, NOON).due == NOON


@pytest.mark.parametrize("name", ["latest", "spread"])
def test_a_rule_says_alone_when_a_message_is_due(name: str) -> None:
    message = replace(NewMessage("x", id="a", repeat=hourly()), **{name: "1h"})
    with pytest.raises(bide.InvalidArgument, match=f"{name}= and repeat= cannot be combined"):
        first_run_of(message, None, 0, NOON)


def test_a_rule_is_no_text() -> None:
    with pytest.raises(bide.InvalidArgument, match=r"repeat='1h' is not a rule; write bide\.Cron"):
        first_run_of(NewMessage("x", repeat="1h"), None, 0, NOON)


@pytest.mark.parametrize(
    ("begun", "now", "once", "all_", "skip"),
    [
        (0, 5, 1, 1, 1),  # it ended before the next time
        (150, 155, 3, 1, 3),  # it began late: with "once", what was missed is this run
        (0, 150, 2, 1, 3),  # it ran for so long that two times came: with "once", they are one
        (0, 60, 1, 1, 2),  # the next time is now
        (90, 130, 2, 1, 3),  # both
    ],
)
def test_missed_says_which_run_follows(
    begun: int, now: int, once: int, all_: int, skip: int
) -> None:
    """Minutes after the time of the run; and which full hour after it the next run is of."""
    expected: dict[Any, int] = {"once": once, "all": all_, "skip": skip}
    for missed, hours in expected.items():
        times = [NOON + minutes * HOUR // 60 for minutes in (begun, now)]
        run = following(hourly(missed=missed), Run(NOON), *times)
        assert run == then(hours), missed


def test_a_run_that_was_moved_forward_is_not_run_twice() -> None:
    """Monday's run that was moved to Saturday is followed by the run after Monday's."""
    weekly = bide.Cron("0 12 * * MON")
    saturday = NOON - 48 * HOUR
    assert following(weekly, Run(NOON), saturday, saturday + 5) == then(168)


def test_the_last_run_has_none_after_it() -> None:
    assert following(hourly(times=2), Run(NOON, 2), NOON, NOON) == then(1, 1)
    assert following(hourly(times=2), Run(NOON, 1), NOON, NOON) is None
    assert following(hourly(until=NOON / 1000), Run(NOON), NOON, NOON) is None


def test_what_was_missed_ends_with_the_rule() -> None:
    rule = hourly(until=(NOON + HOUR) / 1000)
    assert following(rule, Run(NOON), NOON, NOON + 9 * HOUR) == then(1)


def test_a_message_that_is_held_stays_so() -> None:
    run = following(hourly(), Run(NOON, None, True), NOON, NOON)
    assert run == then(1, held=True)
    assert run is not None
    assert run.next_run == NextRun(LATEST, run.text)


# Messages.


def claimed(rule: Repeat, run: str | None = None, **fields: Any) -> Message:
    """Return a message that was claimed in its first attempt."""
    message = Message(
        "ann", "q", b"1", True, NOON, 0, 1, 2, "leased", rule=rule.text, run=run or Run(NOON).text
    )
    return replace(message, **fields)


def test_an_ack_says_when_the_next_run_is() -> None:
    assert after_ack(claimed(hourly()), NOON, NOON + 5) == then(1).next_run
    assert after_ack(claimed(hourly(times=1), Run(NOON, 1).text), NOON, NOON + 5) is None


def test_a_run_that_can_be_delivered_is() -> None:
    assert renewal(claimed(hourly()), NOON + 5) is None
    assert renewal(claimed(hourly(), attempt=2), NOON + 5 * HOUR) is None
    assert renewal(claimed(hourly(), expires=HOUR), NOON + HOUR) is None


NEXT = then(1).next_run
LATER = Run(NOON + 2 * HOUR).next_run
FIRST = Run(NOON + HOUR).next_run
LAST = Run(NOON + HOUR, 1).next_run


@pytest.mark.parametrize(
    ("message", "now", "expected"),
    [
        (claimed(hourly(), RUN_ENDED + Run(NOON).text), NOON, Renewal("ended", NEXT)),
        (claimed(hourly(), RUN_ENDED + Run(NOON, 1).text), NOON, Renewal("ended", None)),
        (claimed(hourly(), attempt=3), NOON, Renewal("dead", NEXT)),
        (claimed(hourly(), Run(NOON, 1).text, attempt=3), NOON, Renewal("dead", None)),
        (claimed(hourly(), expires=5), NOON + 6, Renewal("expired", Run(NOON + HOUR).next_run)),
        (claimed(hourly(), expires=5), NOON + 2 * HOUR + 5, Renewal("expired", LATER)),
        (claimed(hourly(), expires=9 * HOUR), NOON + 10 * HOUR, Renewal("expired", FIRST)),
        (claimed(hourly(), Run(NOON, 2).text, expires=5), NOON + 6, Renewal("expired", LAST)),
        (claimed(hourly(), Run(NOON, 1).text, expires=5), NOON + 6, Renewal("expired", None)),
        (claimed(hourly(missed="skip")), NOON + 2 * HOUR, Renewal("ended", LATER)),
    ],
)
def test_a_run_that_is_over_makes_place(message: Message, now: int, expected: Renewal) -> None:
    assert renewal(message, now) == expected


@pytest.mark.parametrize("what", ["acked without a plan", "without attempts"])
def test_what_was_missed_since_a_run_was_over_is_one_run(what: str) -> None:
    message = claimed(hourly(), RUN_ENDED + Run(NOON).text, due=NOON + HOUR)
    if what == "without attempts":
        failure = Failure(2, NOON + 2 * HOUR, "w", "no", NOON + HOUR)
        message = claimed(hourly(), attempt=3, failures=(failure,))
    plan = renewal(message, NOON + 5 * HOUR + 9)
    assert plan is not None
    assert plan.next == then(5).next_run


def test_a_run_that_is_skipped_is_none_of_those_that_are_left() -> None:
    plan = renewal(claimed(hourly(missed="skip"), Run(NOON, 2).text), NOON + 2 * HOUR)
    assert plan == Renewal("ended", Run(NOON + 2 * HOUR, 2).next_run)


def test_a_run_that_was_added_is_never_skipped() -> None:
    added = claimed(hourly(missed="skip"), Run(NOON, added=True).text)
    assert renewal(added, NOON + 2 * HOUR) is None


def test_a_run_within_its_grace_is_not_missed() -> None:
    rule = hourly(missed="skip", grace="1m")
    assert renewal(claimed(rule), NOON + 60_000) is None
    assert renewal(claimed(rule), NOON + 60_001) == Renewal("ended", Run(NOON + HOUR).next_run)
    late = NOON + 2 * HOUR + 60_001
    assert renewal(claimed(rule), late) == Renewal("ended", Run(NOON + 3 * HOUR).next_run)
    assert renewal(claimed(rule), late - 1) == Renewal("ended", LATER)
    period = hourly(missed="skip", grace="1d")  # no longer than the period
    assert renewal(claimed(period), NOON + HOUR) == Renewal("ended", Run(NOON + HOUR).next_run)


def test_a_handler_sees_the_last_of_the_runs_that_were_missed() -> None:
    late = NOON + 150 * 60_000
    message = claimed(hourly(), Run(NOON, 9, previous=NOON - HOUR).text)
    seen = delivered_run(message, late)
    assert Run.of(seen.run or "") == Run(NOON + 2 * HOUR, 9, previous=NOON - HOUR)
    assert delivered_run(message, NOON + 5) is message
    for missed in ("all", "skip"):
        other = claimed(hourly(missed=missed))
        assert delivered_run(other, late) is other
    ending = claimed(hourly(until=(NOON + HOUR) / 1000))
    assert Run.of(delivered_run(ending, late).run or "") == Run(NOON + HOUR)
    moved = replace(message, due=late)
    assert delivered_run(moved, late + 5) is moved


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_before_the_start_of_a_rule_no_run_is_missed(missed: Any) -> None:
    rule = hourly(start=(NOON + 24 * HOUR) / 1000, missed=missed)
    message = claimed(rule, Run(NOON + 5).text, due=NOON + 5)  # a first run of the caller's own
    for hours in (2, 23):
        late = NOON + hours * HOUR
        assert renewal(message, late) is None
        assert delivered_run(message, late) is message
    expiring = replace(message, expires=HOUR)
    start = Renewal("expired", Run(NOON + 24 * HOUR).next_run)
    assert renewal(expiring, NOON + 2 * HOUR) == start
    late = NOON + 26 * HOUR + 5
    if missed == "once":
        assert Run.of(delivered_run(message, late).run or "") == Run(NOON + 26 * HOUR)
    elif missed == "skip":
        assert renewal(message, late) == Renewal("ended", Run(NOON + 26 * HOUR).next_run)


def test_a_retry_is_for_the_same_run_as_the_first_attempt() -> None:
    late, later = NOON + 150 * 60_000, NOON + 400 * 60_000
    first = Failure(1, late + 60_000, "w", "no", late)
    message = claimed(hourly(), attempt=2, due=later, planned=NOON, failures=(first,))
    assert Run.of(delivered_run(message, later).run or "") == Run(NOON + 2 * HOUR)
    in_time = replace(message, failures=(replace(first, started=NOON + 5),))
    interrupted = replace(message, attempt=1, failures=(Failure(0, late, "w", "stopped"),))
    unknown = replace(message, attempt=30, failures=(Failure(10, late, "w", "no", late),))
    unremembered = replace(message, attempt=2, failures=())
    for other in (in_time, interrupted, unknown, unremembered):
        assert delivered_run(other, later) is other


def test_a_run_that_somebody_has_moved_is_not_missed() -> None:
    message = claimed(hourly(missed="skip"), due=NOON + 5 * HOUR)
    assert renewal(message, NOON + 5 * HOUR + 5) is None
    assert renewal(replace(message, failures=(Failure(1, 1, "w", "no"),)), NOON + 9 * HOUR) is None


def test_a_dead_letter_of_a_run_is_a_message_of_its_own() -> None:
    failure = Failure(2, NOON, "w", "no")
    message = claimed(hourly(), attempt=3, failures=(failure,), group="g", headers={"a": "b"})
    item = dead_letter(message, NOON + 5)
    assert item.id == "ann@2026-03-02T12:00:00.000Z"
    assert (item.attempt, item.attempts, item.failures, item.died) == (2, 2, (failure,), NOON + 5)
    assert (item.rule, item.run, item.group, item.headers) == (None, None, "g", {"a": "b"})
    buried = replace(message, attempt=11, attempts=10, failures=(replace(failure, attempt=1),))
    assert dead_letter(buried, NOON).attempt == 1
    assert len("i" * MAX_REPEATED_ID + item.id.removeprefix("ann")) == MAX_NAME


@pytest.mark.parametrize(
    ("id", "rule", "run", "text"),
    [
        ("a", None, "1", "a run needs a rule"),
        ("a", "hourly", None, "is not a rule"),
        ("a", "daily", Run(NOON).text, "is not a rule"),
        ("a", hourly().text, "now", "is not a run"),
        ("i" * 500, hourly().text, Run(NOON).text, "may have 487 bytes"),
    ],
)
def test_texts_from_outside_are_checked(
    id: str, rule: str | None, run: str | None, text: str
) -> None:
    check_rule_and_run("a", None, None)
    check_rule_and_run("a", hourly().text, Run(NOON).text)
    with pytest.raises(bide.InvalidArgument, match=text):
        check_rule_and_run(id, rule, run)


def test_a_message_says_how_it_repeats() -> None:
    message = claimed(hourly(), Run(NOON, None, True).text)
    assert (message.repeat, message.run_at, message.held) == (hourly(), at(NOON), True)
    plain = replace(message, rule=None, run=None)
    assert (plain.repeat, plain.run_at, plain.held) == (None, None, False)
