"""The checker of the fault tests is worth something: it finds what is wrong in a journal."""

from pathlib import Path
from typing import Any

import pytest

from bide import Counts, Flow, Sizes
from tests.faults.checker import check, check_counts
from tests.faults.journal import Event, Journal, read


def put(*ids: str, at: int = 0) -> list[Event]:
    return [{"tries": "put", "ids": ids, "at": at}, {"did": "put", "ids": ids, "at": at}]


def claim(id: str, now: int, until: int, token: int) -> Event:
    return {"did": "claim", "now": now, "token": token, "messages": [[id, until]], "at": now}


def ack(id: str, at: int, token: int = 1, done: bool = True) -> list[Event]:
    facts = {"id": id, "token": token, "at": at}
    return [{"tries": "ack", **facts}, {"did": "ack", "done": done, **facts}]


def cancel(id: str, at: int, done: bool = True) -> list[Event]:
    return [
        {"tries": "cancel", "id": id, "at": at},
        {"did": "cancel", "id": id, "done": done, "at": at},
    ]


SOUND: list[Event] = [
    *put("a", "b", "c", "d"),
    claim("a", 10, 20, 1),
    *ack("a", 15, 1),
    *cancel("b", 12),
    claim("c", 10, 20, 2),
    claim("c", 20, 30, 3),
    *ack("c", 21, 2, done=False),
    *ack("c", 22, 3),
    claim("d", 10, 20, 4),
    {"tries": "release", "id": "d", "token": 4, "at": 12},
    claim("d", 13, 33, 5),
    {"tries": "release", "id": "d", "token": 5, "at": 13},
    claim("d", 13, 23, 6),
    *ack("d", 14, 6),
]


def test_a_sound_journal_has_no_problems() -> None:
    assert check([SOUND]) == []
    assert check([SOUND[:5], SOUND[5:]]) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (put("lost"), "lost was confirmed and never delivered"),
        ([*put("lost"), {"tries": "claim", "at": 1}], "lost was confirmed and never delivered"),
        (
            [*put("x"), claim("x", 10, 20, 1), claim("x", 19, 30, 2)],
            "x was claimed at 19, but leased until 20",
        ),
        (
            [
                *put("x"),
                claim("x", 10, 20, 1),
                {"did": "extend", "id": "x", "token": 1, "until": 40, "at": 15},
                claim("x", 39, 50, 2),
            ],
            "x was claimed at 39, but leased until 40",
        ),
        (
            [
                *put("x"),
                claim("x", 10, 40, 1),
                {"tries": "extend", "id": "x", "token": 1, "lease": 10, "at": 15},
                claim("x", 24, 50, 2),
            ],
            "x was claimed at 24, but leased until 25",
        ),
        (
            [
                *put("x"),
                claim("x", 10, 20, 1),
                {"tries": "release", "id": "x", "token": 9, "at": 15},
                claim("x", 16, 50, 2),
            ],
            "x was claimed at 16, but leased until 20",
        ),
        (
            [*put("x"), claim("x", 10, 20, 7), claim("x", 25, 30, 7)],
            "x was claimed with token 7 after 7",
        ),
        (
            [*put("x"), claim("x", 10, 20, 1), *ack("x", 11), *ack("x", 12)],
            "x was acked 2 times",
        ),
        (
            [*put("x"), claim("x", 10, 20, 1), *ack("x", 11), claim("x", 30, 40, 2)],
            "x was delivered at 30, after its ack at 11",
        ),
        (
            [*put("x"), *cancel("x", 5), claim("x", 6, 16, 1)],
            "x was delivered at 6, after its cancel at 5",
        ),
    ],
)
def test_what_breaks_a_promise_is_found(events: list[Event], problem: str) -> None:
    assert check([SOUND, events]) == [problem]


def test_what_was_tried_and_never_confirmed_may_be_either_way() -> None:
    open_ended: list[Event] = [
        {"tries": "put", "ids": ["x"], "at": 1},
        *put("y"),
        {"tries": "cancel", "id": "y", "at": 2},
        *put("z"),
        *cancel("z", 3, done=False),
        claim("z", 4, 50, 1),
        {"tries": "extend", "id": "z", "token": 1, "lease": 5, "at": 5},
        claim("z", 10, 20, 2),
    ]
    assert check([open_ended]) == []


@pytest.mark.parametrize(
    ("flow", "left", "problems"),
    [
        (Flow(put=4, acked=3, cancelled=1), 0, []),
        (
            Flow(put=3, acked=2, cancelled=1),
            0,
            ["3 were put: 4 confirmed, 4 tried", "2 were acked: 3 confirmed, 4 tried"],
        ),
        (
            Flow(put=4, acked=5, cancelled=2),
            0,
            ["5 were acked: 3 confirmed, 4 tried", "2 were cancelled: 1 confirmed, 1 tried"],
        ),
        (Flow(put=4, acked=3, cancelled=1), 2, ["2 are left after the end"]),
    ],
)
def test_counters_that_cannot_be_are_found(flow: Flow, left: int, problems: list[str]) -> None:
    assert check_counts([SOUND], Counts(Sizes(ready=left), flow)) == problems


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.tries("put", ids=["a"])
    journal.did("put", ids=["a"])
    with (tmp_path / "journal").open("a") as file:
        file.write('{"did": "pu')
    events: list[Any] = list(read(tmp_path / "journal"))
    assert [event.get("did") for event in events] == [None, "put"]
    assert events[0]["at"] > 0
