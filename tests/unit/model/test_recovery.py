"""Plans for what is overdue, as tables: messages, plan and time give what becomes of each."""

from itertools import pairwise
from typing import Any

import pytest

import bide
from bide.model.limits import MAX_PLAN
from bide.model.message import Message
from bide.model.recovery import LATENESS, Move, Places, Recovered, Recovery, Survey, moves, plan_of
from bide.model.runs import Run
from bide.model.time_rule import TimeRule

NOW = 1_700_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE


def late(id: str, ms: int, **fields: Any) -> Message:
    """Return a message that has been due for so many milliseconds."""
    defaults: dict[str, Any] = {"priority": 0, "attempt": 0, "attempts": 10, "state": "ready"}
    return Message(id, "q", b"1", json=True, due=NOW - ms, **(defaults | fields))


def told(messages: list[Message], **plan: Any) -> dict[str, str | int]:
    """Return of each message what becomes of it: when it is due from now on, or its fate."""
    found: dict[str, str | int] = {}
    for move in moves("q", messages, Recovery(**plan), NOW):
        stays = "stays" if move.due == move.message.due else move.due - NOW
        found[move.message.id] = stays if move.fate == "kept" else move.fate
    return found


REPEATING = {"rule": '{"every":"1h"}', "run": Run(NOW - 7 * HOUR).text}
WINDOW = TimeRule(window=bide.Window("Mon-Sun", "UTC")).text

GROUPED = [
    late("a1", 5 * HOUR, group="a"),
    late("b1", 4 * HOUR, group="b"),
    late("a2", 3 * HOUR, group="a"),
    late("none", 2 * HOUR),
    late("a3", HOUR, group="a"),
]


@pytest.mark.parametrize(
    ("messages", "plan", "becomes"),
    [
        ([], {"spread": "10m"}, {}),
        ([late("a", 0)], {"spread": "10m"}, {"a": 1}),
        ([late("a", -1)], {"spread": "10m"}, {"a": "fresh"}),
        (
            [late(id, HOUR) for id in "abcd"],
            {"spread": "4s"},
            {"a": 1, "b": 1_001, "c": 2_001, "d": 3_001},
        ),
        (
            [late(id, HOUR) for id in "abc"],
            {"rate": "2/s"},
            {"a": 1, "b": 501, "c": 1_001},
        ),
        (
            [late("a", 7 * HOUR), late("b", 6 * HOUR), late("c", HOUR)],
            {"drop_later_than": "6h", "spread": "10s"},
            {"a": "dropped", "b": 1, "c": 5_001},
        ),
        (
            [late("a", 7 * HOUR), late("b", HOUR)],
            {"drop_later_than": "6h"},
            {"a": "dropped", "b": "stays"},
        ),
        (
            GROUPED,
            {"latest_of_group": True},
            {"a1": "superseded", "b1": "stays", "a2": "superseded", "none": "stays", "a3": "stays"},
        ),
        (  # the latest of a group is kept only if it is not too late
            GROUPED,
            {"latest_of_group": True, "drop_later_than": "3h", "spread": "2s"},
            {"a1": "dropped", "b1": "dropped", "a2": "superseded", "none": 1, "a3": 1_001},
        ),
        (  # of equal times the id decides
            [late("a", HOUR, group="g"), late("b", HOUR, group="g")],
            {"latest_of_group": True},
            {"a": "superseded", "b": "stays"},
        ),
        (  # lateness counts from the planned time
            [late("a", 1, planned=NOW - 7 * HOUR), late("b", HOUR)],
            {"drop_later_than": "6h"},
            {"a": "dropped", "b": "stays"},
        ),
        (  # too late to be delivered, or before its turn
            [late("a", HOUR, expires=MINUTE), late("b", HOUR, expires=HOUR + 1_000), late("c", 1)],
            {"spread": "10s"},
            {"a": "expired", "b": 1, "c": 5_001},
        ),
        (
            [late("a", 1), late("b", HOUR, expires=HOUR + 1_000)],
            {"spread": "10s"},
            {"a": 1, "b": "stays"},
        ),
        (  # a rule says itself what becomes of missed runs
            [
                late("a", 7 * HOUR, **REPEATING, group="g"),
                late("b", HOUR, group="g"),
                late("c", 2 * HOUR, **REPEATING, expires=1),
            ],
            {"drop_later_than": "6h", "latest_of_group": True, "spread": "3s"},
            {"a": 1, "b": 1_001, "c": 2_001},
        ),
        (  # a window or a local date is a rule, too, and says nothing of missed runs
            [
                late("a", 7 * HOUR, rule=WINDOW),
                late("b", 2 * HOUR, rule=WINDOW, group="g"),
                late("c", HOUR, group="g"),
                late("d", HOUR, rule=WINDOW, expires=HOUR + 1),
                late("e", HOUR, rule=WINDOW, expires=MINUTE),
            ],
            {"drop_later_than": "6h", "latest_of_group": True, "spread": "3s"},
            {"a": "dropped", "b": "superseded", "c": 1, "d": "stays", "e": "expired"},
        ),
    ],
)
def test_what_becomes_of_messages(
    messages: list[Message], plan: dict[str, Any], becomes: dict[str, str | int]
) -> None:
    assert told(messages, **plan) == becomes


def test_fresh_first_takes_the_priority() -> None:
    messages = [late("a", HOUR, priority=5), late("b", HOUR)]
    found = list(moves("q", messages, Recovery(fresh_first=True), NOW))
    assert [(move.due, move.priority, move.moves) for move in found] == [
        (NOW - HOUR, 0, True),
        (NOW - HOUR, 0, False),
    ]


def test_higher_priorities_come_first_wherever_the_store_lists_them() -> None:
    priorities = {"a": 0, "b": 9, "c": 0, "d": 5, "e": 9}
    messages = [late(id, HOUR, priority=priority) for id, priority in priorities.items()]
    dues = {"b": 1, "e": 1_001, "d": 2_001, "a": 3_001, "c": 4_001}
    assert told(messages, spread="5s") == dues
    assert told(messages, rate="1/s") == dues


def test_what_is_dropped_or_superseded_takes_no_place_of_its_priority() -> None:
    messages = [
        late("a", 3 * HOUR, priority=9),
        late("b", 2 * HOUR, priority=9, group="g"),
        late("c", HOUR, priority=5, group="g"),
        late("d", HOUR),
    ]
    plan = {"drop_later_than": "2h", "latest_of_group": True, "spread": "2s"}
    assert told(messages, **plan) == {"a": "dropped", "b": "superseded", "c": 1, "d": 1_001}


def test_a_priority_that_was_not_counted_comes_at_the_end() -> None:
    survey = Survey("q", Recovery(spread="1s"), NOW)
    survey.see(late("a", 1))
    places = Places(survey)
    assert places.move(late("b", 1, priority=3)).due - NOW == 1_001


def test_places_are_even_and_within_the_span() -> None:
    messages = [late(str(number), HOUR) for number in range(1_000)]
    dues = [move.due - NOW - 1 for move in moves("q", messages, Recovery(spread="7s"), NOW)]
    assert (dues[0], dues[-1]) == (0, 6_993)
    assert {after - before for before, after in pairwise(dues)} == {7}


def test_those_that_were_not_counted_come_at_the_end() -> None:
    survey = Survey("q", Recovery(spread="1s"), NOW)
    survey.see(late("a", 1))
    places = Places(survey)
    dues = [places.move(late(id, 1)).due - NOW for id in "abc"]
    assert dues == [1, 1_001, 1_001]


def test_a_survey_counts_by_lateness_and_group() -> None:
    survey = Survey("q", None, NOW)
    for ms in (0, MINUTE - 1, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, 9 * HOUR):
        survey.see(late("x", ms, group="g" if ms < HOUR else "h"))
    survey.see(late("fresh", -5))
    survey.see(late("expired", HOUR, expires=1))
    survey.see(late("repeats", HOUR, **REPEATING))
    report = survey.counted("spread 10m")
    assert len(report.late) == len(LATENESS) + 1
    assert report.late == [2, 1, 1, 3, 2]
    assert (report.messages, report.expired, report.repeating) == (9, 1, 1)
    assert report.groups == {"g": 4, "h": 3}
    assert (report.latest, report.plan) == (9 * HOUR, "spread 10m")
    assert Survey("q", None, NOW).counted("").latest == 0


def test_results_are_counted_and_say_how_many_per_minute() -> None:
    result = Recovered()
    for number in range(120):
        result.count(Move(late("a", 1), "kept", NOW + number * 1_000, 0))
    result.count(Move(late("a", 1), "kept", NOW - 1, 0))
    result.count(Move(late("a", 1), "dropped", NOW - 1, 0))
    result.count(Move(late("a", 1), "kept", NOW, 0), changed=True)
    result.count(Move(late("a", -1), "fresh", NOW + 1, 0))
    assert (result.overdue, result.moved, result.left) == (123, 120, 1)
    assert (result.dropped, result.changed) == (1, 1)
    assert (result.first, result.last) == (NOW, NOW + 119_000)
    assert round(result.per_minute) == 61
    assert Recovered().per_minute == 0


@pytest.mark.parametrize(
    "plan",
    [
        Recovery(drop_later_than="6h", spread="10m"),
        Recovery(drop_later_than=3_601.5, latest_of_group=True, rate="100/m", fresh_first=True),
        Recovery(latest_of_group=True),
        Recovery(fresh_first=True),
        Recovery(spread="1h30m15s"),
        Recovery(rate=2.5),
    ],
)
def test_a_plan_is_text_and_back(plan: Recovery) -> None:
    again = plan_of(plan.text)
    assert again.text == plan.text
    assert plan_of(again) is again
    assert len(plan.text) < MAX_PLAN


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("spread 10m", Recovery(spread="10m")),
        ("  drop   6h ,spread 10m", Recovery(drop_later_than="6h", spread="10m")),
        ("latest of group, fresh first", Recovery(latest_of_group=True, fresh_first=True)),
        ("rate 100/s", Recovery(rate="100/s")),
    ],
)
def test_a_plan_is_read(text: str, plan: Recovery) -> None:
    assert plan_of(text) == plan


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("sprad 10m", "is not a plan; write"),
        ("spread", "is not a plan"),
        ("spread soon, now", "is not a plan"),
        ("spread 1m, spread 2m", "is not a plan"),
        ("spread soon", "spread='soon' is not a valid duration"),
        ("rate 0", "rate must be above 0"),
        ("drop 0s", "drop_later_than must be longer than 0"),
        ("spread 10m, rate 5/s", "give spread= or rate=, not both"),
        ("", "is not a plan"),
        ("drop 6h" + " " * 1_000 + ", spread 10m", "has 1,019 characters, the limit is 1,000"),
        (5, "cannot be of type int; give a bide.Recovery"),
    ],
)
def test_what_is_no_plan(value: Any, why: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=why):
        plan_of(value)


def test_a_plan_says_something() -> None:
    with pytest.raises(bide.InvalidArgument, match="needs to know what to do"):
        Recovery()
    with pytest.raises(bide.InvalidArgument, match="must be True or False"):
        Recovery(latest_of_group="yes")  # type: ignore[arg-type]


def test_what_takes_long_to_move_is_due_when_all_are_moved() -> None:
    """By the pace so far: else much would be due together when the recovery is through."""
    survey = Survey("q", Recovery(spread="4s"), NOW)
    messages = [late(id, HOUR) for id in "abcd"]
    for message in messages:
        survey.see(message)
    places = Places(survey)
    dues = []
    for message, now in zip(messages, (100, 300, 350, 360), strict=True):
        places.estimate_end(NOW + now)
        dues.append(places.move(message).due - NOW)
    # To read them took 100 ms, so to move them may take 300. The first one took 200: 800 in all.
    assert dues == [400, 900 + 1_000, 900 + 2_000, 900 + 3_000]
