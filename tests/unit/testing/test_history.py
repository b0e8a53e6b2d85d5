"""The checker of histories: planted faults of each kind are found, and a right history has none."""

from typing import Any

import pytest

from bide import Counts, Flow, Sizes
from bide.testing.history import KINDS, Event, check, check_counts, story_of

DAY = 86_400_000


def put(*ids: str, at: int = 0, **facts: Any) -> list[Event]:
    return [
        {"tries": "put", "ids": ids, "at": at, **facts},
        {"did": "put", "ids": ids, "at": at, "dues": [at] * len(ids)},
    ]


def claim(id: str, now: int, until: int, token: int, **facts: Any) -> Event:
    messages = [{"id": id, "until": until, **facts}]
    return {"did": "claim", "now": now, "token": token, "messages": messages, "at": now}


def call(verb: str, id: str, at: int, *, done: bool = True, **facts: Any) -> list[Event]:
    return [
        {"tries": verb, "id": id, "at": at, **facts},
        {"did": verb, "id": id, "at": at, "done": done, **facts},
    ]


def ack(id: str, at: int, token: int = 1, *, done: bool = True) -> list[Event]:
    return call("ack", id, at, done=done, token=token)


def cancel(id: str, at: int, *, done: bool = True) -> list[Event]:
    return call("cancel", id, at, done=done)


def closed(group: str, at: int) -> list[Event]:
    return [
        {"tries": "close", "group": group, "at": at},
        {"did": "close", "group": group, "at": at},
    ]


def whole(id: str, token: int = 1) -> list[Event]:
    """Return the history of a message with which all is right."""
    return [*put(id), claim(id, 10, 20, token), *ack(id, 15, token)]


def clock(now: int, elapsed: int) -> list[Event]:
    """Return a claim when the store's clock shows `now`, and that of the process `elapsed`."""
    times = {"at": 0, "elapsed": elapsed}
    return [
        {"tries": "claim", **times},
        {"did": "claim", "now": now, "token": now, "messages": [], **times},
    ]


SOUND: list[Event] = [
    *put("a", "b", "c", "d"),
    claim("a", 10, 20, 1, due=10, attempt=1),
    *ack("a", 15, 1),
    *cancel("b", 12),
    claim("c", 10, 20, 2, due=4, attempt=1),
    claim("c", 20, 30, 3, due=4, attempt=2),
    *ack("c", 21, 2, done=False),
    *ack("c", 22, 3),
    claim("d", 10, 20, 4),
    {"tries": "release", "id": "d", "token": 4, "at": 12},
    claim("d", 13, 33, 5),
    {"tries": "release", "id": "d", "token": 5, "at": 13},
    claim("d", 13, 23, 6),
    *ack("d", 14, 6),
]


def whats(*journals: list[Event]) -> list[str]:
    return [violation.what for violation in check(journals).violations]


def test_a_sound_history_has_no_violations() -> None:
    for journals in ([SOUND], [SOUND[:5], SOUND[5:]]):
        result = check(journals)
        assert result
        assert (result.confirmed, result.acked, result.cancelled) == (4, 3, 1)
        assert result.delivered == 6
        assert result.twice == {"lapsed": 1}
        assert result.lateness == [0, 6]


PLANTED: list[tuple[str, list[Event], str]] = [
    ("lost", put("x"), "x was confirmed and never delivered"),
    (
        "lost",
        [*put("x"), {"tries": "claim", "at": 1}],
        "x was confirmed and never delivered",
    ),
    (
        "lost",
        [*put("x"), *cancel("x", 5, done=False)],
        "x was confirmed and never delivered",
    ),
    (
        "lost",
        [*put("x"), claim("x", 10, 20, 1), *ack("x", 11, done=False)],
        "x was confirmed and delivered, but never acked, and is gone",
    ),
    (
        "early",
        [*put("x"), claim("x", 10, 20, 1, due=11), *ack("x", 15)],
        "x was delivered at 10, 1 ms before it was due",
    ),
    (
        "early",
        [*put("x"), *call("reschedule", "x", 5, due=50), claim("x", 10, 20, 1), *ack("x", 15)],
        "x was delivered at 10, 40 ms before it was due, as the store had confirmed",
    ),
    (
        "two holders",
        [*put("x"), claim("x", 10, 20, 1), claim("x", 19, 30, 2), *ack("x", 25, 2)],
        "x was claimed by process 2 at 19, but process 2 held it until 20",
    ),
    (
        "two holders",
        [
            *put("x"),
            claim("x", 10, 20, 1),
            {"did": "extend", "id": "x", "token": 1, "until": 40, "at": 15},
            claim("x", 39, 50, 2),
            *ack("x", 45, 2),
        ],
        "x was claimed by process 2 at 39, but process 2 held it until 40",
    ),
    (
        "two holders",
        [
            *put("x"),
            claim("x", 10, 40, 1),
            {"tries": "extend", "id": "x", "token": 1, "lease": 10, "at": 15},
            claim("x", 24, 50, 2),
            *ack("x", 45, 2),
        ],
        "x was claimed by process 2 at 24, but process 2 held it until 25",
    ),
    (
        "two holders",
        [
            *put("x"),
            claim("x", 10, 20, 1),
            {"tries": "release", "id": "x", "token": 9, "at": 15},
            claim("x", 16, 50, 2),
            *ack("x", 45, 2),
        ],
        "x was claimed by process 2 at 16, but process 2 held it until 20",
    ),
    (
        "two holders",
        [
            *put("x"),
            claim("x", 10, 20, 1),
            {"tries": "ack", "id": "x", "token": 1, "at": 12},
            claim("x", 16, 50, 2),
            *ack("x", 45, 2),
        ],
        "x was claimed by process 2 at 16, but process 2 held it until 20",
    ),
    (
        "token",
        [*put("x"), claim("x", 10, 20, 7), claim("x", 25, 30, 7), *ack("x", 26, 7)],
        "x was claimed with token 7 after 7",
    ),
    (
        "acked twice",
        [*whole("x"), *ack("x", 16)],
        "x was acked 2 times",
    ),
    (
        "acked",
        [*whole("x"), claim("x", 30, 40, 2)],
        "x was delivered at 30, after its ack at 15",
    ),
    (
        "acked and cancelled",
        [*whole("x"), *cancel("x", 50)],
        "x was acked and cancelled: one of the answers is wrong",
    ),
    (
        "cancelled",
        [*put("x"), *cancel("x", 5), claim("x", 6, 16, 1)],
        "x was delivered at 6, after its cancel at 5",
    ),
    (
        "cancelled",
        [*put("x"), claim("x", 4, 16, 1), *cancel("x", 5)],
        "x was held by process 2 until 16, and its cancel at 5 returned true",
    ),
    (
        "closed",
        [*put("x", group="g"), *closed("g", 15), claim("x", 16, 26, 1), *ack("x", 20)],
        "x was delivered at 16, after its group was closed at 15",
    ),
    (
        "unexplained",
        [
            *put("x"),
            claim("x", 10, 20, 1),
            *ack("x", 15, 1, done=False),
            claim("x", 25, 40, 2),
            *ack("x", 30, 2),
        ],
        "x was delivered again at 25, though process 2 tried to ack it within its lease, until 20",
    ),
    (
        "never put",
        [claim("x", 10, 20, 1), *ack("x", 15)],
        "x was delivered and never put",
    ),
    (
        "altered",
        [*put("x"), claim("x", 10, 20, 1, altered=True), *ack("x", 15)],
        "x was delivered at 10 with another body than it was put",
    ),
    (
        "not gone",
        [*whole("x"), {"did": "left", "ids": ["x"], "at": 60}],
        "x was acked at 15, and is still there",
    ),
    (
        "not gone",
        [*put("x"), *cancel("x", 5), {"did": "left", "ids": ["x"], "at": 60}],
        "x was cancelled at 5, and is still there",
    ),
    (
        "clock",
        [*clock(DAY, 0), *clock(DAY - 5_000, 1_000)],
        "the clock of the store was set back by 6.0 s or more, as the claims of process 2 show",
    ),
    (
        "clock",
        [*clock(DAY, 0), *clock(DAY + 9_000, 1_000)],
        "the clock of the store was set forward by 8.0 s or more, as the claims of process 2 show",
    ),
]


@pytest.mark.parametrize(("kind", "events", "what"), PLANTED)
def test_a_planted_fault_is_found(kind: str, events: list[Event], what: str) -> None:
    (violation,) = check([SOUND, events]).violations
    assert (violation.kind, violation.what) == (kind, what)
    if kind != "clock":
        assert violation.id == "x"
        assert len(violation.story) == sum("x" in str(event) for event in events)


def test_each_kind_has_a_planted_fault() -> None:
    assert {kind for kind, _, _ in PLANTED} | {"audit"} == set(KINDS)


def test_what_was_tried_and_never_confirmed_may_be_either_way() -> None:
    events: list[Event] = [
        {"tries": "put", "ids": ["x"], "at": 1},
        *put("y"),
        {"tries": "cancel", "id": "y", "at": 2},
        {"unknown": "cancel", "id": "y", "at": 3},
        *put("z"),
        *cancel("z", 3, done=False),
        claim("z", 4, 50, 1),
        {"tries": "extend", "id": "z", "token": 1, "lease": 5, "at": 5},
        claim("z", 10, 20, 2),
        {"tries": "ack", "id": "z", "token": 2, "at": 12},
        *put("w"),
        {"tries": "reschedule", "id": "w", "at": 5},
        claim("w", 6, 20, 3),
        *ack("w", 7, 3),
    ]
    assert whats(events) == []


def test_what_is_left_at_the_end_is_not_lost() -> None:
    assert whats([*put("x"), {"did": "left", "ids": ["x"], "at": 60}]) == []


def test_what_a_closed_group_refused_or_cancelled_is_not_lost() -> None:
    events: list[Event] = [
        {"tries": "put", "ids": ["a", "b", "c"], "group": "g", "at": 0},
        {"did": "put", "ids": ["a", "b"], "group": "g", "at": 0},
        claim("a", 10, 20, 1),
        *closed("g", 15),
    ]
    assert whats(events) == []


def test_a_later_reschedule_replaces_an_earlier_one() -> None:
    events = [
        *put("x"),
        *call("reschedule", "x", 5, due=50),
        *call("reschedule", "x", 8, due=9),
        claim("x", 10, 20, 1),
        *ack("x", 15),
    ]
    assert whats(events) == []


def second(*events: Event) -> list[Event]:
    """Return a history whose second delivery, by another process, is explained by events."""
    return [{"did": "start", "name": "w1", "at": 0}, *put("x"), claim("x", 10, 20, 1), *events]


NEXT: list[Event] = [claim("x", 25, 40, 2), *ack("x", 30, 2)]


@pytest.mark.parametrize(
    ("events", "others", "twice"),
    [
        ([], [{"did": "kill", "name": "w1", "at": 12}], {"killed": 1}),
        ([{"tries": "ack", "id": "x", "token": 1, "at": 12}], [], {"unknown": 1}),
        (ack("x", 21, done=False), [], {"lapsed": 1}),
        ([], [], {"lapsed": 1}),
        (call("retry", "x", 12, token=1), [], {}),
        (ack("x", 12, done=False), [], {"unexplained": 1}),
    ],
)
def test_second_deliveries_are_explained(
    events: list[Event], others: list[Event], twice: dict[str, int]
) -> None:
    result = check([second(*events), NEXT, others])
    assert result.twice == twice
    assert (result.explained, result.unexplained) == (
        sum(twice.values()) - twice.get("unexplained", 0),
        twice.get("unexplained", 0),
    )
    assert bool(result) is ("unexplained" not in twice)


def test_the_clock_of_the_store_may_be_hours_ahead() -> None:
    """A claim that was tried before a cancel, and got the message after it, is found as well."""
    ahead = 3 * 3_600_000

    def at_store(id: str, tried: int, now: int, token: int) -> list[Event]:
        got = {**claim(id, now + ahead, now + ahead + 10, token), "at": now}
        return [{"tries": "claim", "at": tried}, got]

    others = [*put("y"), *at_store("y", 1, 1, 1), *ack("y", 2, 1)]
    before = [*put("x"), *at_store("x", 3, 4, 2), *call("retry", "x", 5, token=2)]
    assert whats(others, [*before, *cancel("x", 8)]) == []
    waited = [*put("x"), *cancel("x", 8), *at_store("x", 3, 10, 2)]
    assert whats(others, waited) == [f"x was delivered at {10 + ahead}, after its cancel at 8"]


def test_processes_of_one_machine_show_together_that_the_clock_was_set() -> None:
    def process(name: str, *events: Event, **facts: Any) -> list[Event]:
        return [{"did": "start", "name": name, "at": 0, **facts}, *events]

    before, after = clock(DAY, 0), clock(DAY - 5_000, 1_000)
    here = {"machine": "here"}
    assert whats(process("w1", *before, **here), process("w2", *after, **here)) == [
        "the clock of the store was set back by 6.0 s or more, as the claims of w2 show"
    ]
    # The clocks of two machines, which nobody sets, have nothing in common.
    assert whats(process("w1", *before), process("w2", *after)) == []
    steady = clock(DAY + 1_500, 1_000)
    assert whats(process("w1", *before, **here), process("w2", *steady, **here)) == []


def test_a_clock_that_is_slow_was_not_set() -> None:
    """It may lose 30 ms a minute, as one that is corrected: more than a second in an hour."""
    minutes = [clock(DAY + minute * 59_970, minute * 60_000) for minute in range(90)]
    assert whats([event for events in minutes for event in events]) == []


def test_a_story_has_all_that_is_known_of_a_message() -> None:
    events = second(
        {"tries": "ack", "id": "x", "token": 1, "at": 12}, {"unknown": "ack", "id": "x", "at": 14}
    )
    supervisor: list[Event] = [
        {"did": "fault", "at": 11},
        {"did": "kill", "name": "w1", "at": 22},
        {"did": "left", "ids": ["x"], "at": 60},
        {"did": "fault", "at": 70},
        {"did": "fault", "at": 80},
    ]
    others = [*put("other"), *call("reschedule", "x", 9, done=False)]
    assert story_of("x", [events, others, supervisor]) == (
        "00:00:00.000  w1 tries to put it",
        "00:00:00.000  w1 put confirmed (due 00:00:00.000)",
        "00:00:00.009  process 2 tries to reschedule it",
        "00:00:00.009  process 2 reschedule refused",
        "00:00:00.010  w1 claim confirmed (now 00:00:00.010, token 1, until 00:00:00.020)",
        "00:00:00.011  the fault was run",
        "00:00:00.012  w1 tries to ack it (token 1)",
        "00:00:00.014  w1 does not know what became of its ack",
        "00:00:00.022  w1 was killed",
        "00:00:00.060  process 3 finds it in the queue at the end",
        "00:00:00.070  the fault was run",
    )


def test_of_many_violations_some_of_each_kind_have_a_story() -> None:
    lost = [event for number in range(100) for event in put(f"lost{number}")]
    early = [*put("x"), claim("x", 10, 20, 1, due=11), *ack("x", 15)]
    result = check([lost, early])
    assert result.of_kind("lost") == 100
    told = [violation.kind for violation in result.violations if violation.story]
    assert 5 < len(told) < 50
    assert "early" in told
    assert [v.kind for v in result.violations[: len(told)]] == told, "those come first"


@pytest.mark.parametrize(
    ("flow", "left", "problems"),
    [
        (Flow(put=4, acked=3, cancelled=1), 0, []),
        (
            Flow(put=3, acked=2, cancelled=1),
            0,
            [
                "3 were put by the counters of the store: 4 confirmed, 4 tried",
                "2 were acked by the counters of the store: 3 confirmed, 4 tried",
            ],
        ),
        (
            Flow(put=4, acked=5, cancelled=2),
            0,
            [
                "5 were acked by the counters of the store: 3 confirmed, 4 tried",
                "2 were cancelled by the counters of the store: 1 confirmed, 1 tried",
            ],
        ),
        (
            Flow(put=4, acked=3, cancelled=1),
            2,
            ["2 are left by the counters, 0 are there"],
        ),
    ],
)
def test_counters_that_cannot_be_are_found(flow: Flow, left: int, problems: list[str]) -> None:
    violations = check_counts([SOUND], Counts(Sizes(ready=left), flow))
    assert [violation.what for violation in violations] == problems
    assert {violation.kind for violation in violations} <= {"audit"}


def test_a_closed_group_cancels_what_was_put_into_it() -> None:
    events: list[Event] = [*put("a", "b", group="g"), *closed("g", 15)]
    assert check_counts([events], Counts(Sizes(), Flow(put=2, cancelled=2))) == []
