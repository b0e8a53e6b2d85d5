"""`--undo` and `bide undo`: bulk changes that can be taken back, and their previews."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from click.testing import Result

import bide
from tests.cli.conftest import Terminal

Bide = Callable[..., Result]

GROUP = ("--group", "g")


def fill(orders: bide.Queue) -> None:
    for number in range(7):
        orders.put({"n": number}, id=f"m{number}", delay=60, group="g")


def bury(orders: bide.Queue) -> None:
    for number in range(3):
        orders.put(number, id=f"d{number}", attempts=1)
    orders.retry(orders.claim(3), reason="ValueError: no")


def token(result: Result, verb: str, count: int) -> str:
    assert result.exit_code == 0, result.output
    (done, undo) = [line.split("\t") for line in result.output.splitlines()]
    assert done == [verb, str(count)]
    assert undo[0] == "undo"
    return undo[1]


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("cancelled", ("cancel", "orders", *GROUP)),
        ("rescheduled", ("reschedule", "orders", *GROUP, "--delay", "1d")),
        ("purged", ("purge", "orders", "--state", "delayed")),
    ],
)
def test_what_waits_is_changed_and_taken_back(
    run: Bide, orders: bide.Queue, verb: str, given: tuple[str, ...]
) -> None:
    fill(orders)
    before = {one.id: one.due for one in orders.scan()}
    undo = token(run(*given, "--undo"), verb, 7)
    assert {one.id: one.due for one in orders.scan()} != before
    back = run("undo", "orders", undo)
    assert back.output.splitlines()[0] == "restored\t7"
    assert back.exit_code == 0
    assert {one.id: one.due for one in orders.scan()} == before
    again = run("undo", "orders", undo, "--json")
    assert again.exit_code == 1
    assert json.loads(again.output) == {
        "restored": 0,
        "taken": 0,
        "claimed": 0,
        "unknown": 0,
        "again": 7,
    }


@pytest.mark.parametrize(
    ("verb", "count", "given"),
    [
        ("revived", 3, ("revive", "orders", "--all")),
        ("revived", 1, ("dead", "revive", "orders", "d1")),
        ("purged", 3, ("dead", "purge", "orders", "--all")),
        ("purged", 3, ("dead", "purge", "orders", "--error", "ValueError")),
        ("purged", 3, ("purge", "orders", "--state", "dead")),
    ],
)
def test_dead_letters_are_changed_and_taken_back(
    run: Bide, orders: bide.Queue, verb: str, count: int, given: tuple[str, ...]
) -> None:
    bury(orders)
    before = list(orders.dead())
    undo = token(run(*given, "--undo"), verb, count)
    assert len(list(orders.dead())) == 3 - count
    assert run("undo", "orders", undo).exit_code == 0
    assert sorted(orders.dead(), key=lambda one: one.id) == before


def test_nothing_to_change_and_nothing_to_take_back(run: Bide, orders: bide.Queue) -> None:
    fill(orders)
    nothing = run("cancel", "orders", "--group", "other", "--undo")
    assert (nothing.output, nothing.exit_code) == ("cancelled\t0\n", 1)
    refused = run("undo", "orders", "0" * 26)
    assert refused.exit_code == 1
    assert "nothing can be taken back by" in refused.stderr
    for given in (("cancel", "orders", "m1", "--undo"), ("reschedule", "orders", "m1", "--undo")):
        assert run(*given).exit_code == 2
    acked = run("purge", "orders", "--state", "acked", "--undo")
    assert "undo= is not for acked messages" in acked.stderr.replace("--undo", "undo=")


def test_a_dry_run_has_nothing_to_take_back(run: Bide, orders: bide.Queue) -> None:
    fill(orders)
    bury(orders)
    for given in (
        ("cancel", "orders", *GROUP),
        ("reschedule", "orders", *GROUP, "--delay", "1d"),
        ("purge", "orders", "--state", "delayed"),
        ("revive", "orders", "--all"),
        ("dead", "purge", "orders", "--all"),
    ):
        refused = run(*given, "--undo", "--dry-run")
        assert refused.exit_code == 2, given
        assert "--undo and --dry-run cannot be combined; leave one of them out" in refused.stderr
    sizes = orders.counts().sizes
    assert (sizes.delayed, sizes.dead) == (7, 3)


def test_a_change_that_fails_says_so(run: Bide, orders: bide.Queue, url: str) -> None:
    fill(orders)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    with closing(other):
        other.execute("BEGIN IMMEDIATE")
        failed = run("cancel", "orders", *GROUP, "--undo", "--url", f"{url}?timeout=0.05")
    assert failed.exit_code == 3
    before = r"What was changed before can be taken back: bide undo orders \w{26}\n"
    assert re.match(before, failed.stderr)


def test_people_are_shown_what_would_change_and_how_to_take_it_back(
    terminal: Terminal, orders: bide.Queue
) -> None:
    fill(orders)
    bury(orders)
    plan: list[tuple[tuple[str, ...], str, str]] = [
        (("cancel", "orders", *GROUP, "--dry-run"), "7 messages would be cancelled", "m4"),
        (("reschedule", "orders", *GROUP, "--delay", "1d", "--dry-run"), "7 messages", "m4"),
        (("purge", "orders", "--state", "delayed", "--dry-run"), "7 delayed messages", "m4"),
        (("revive", "orders", "--all", "--dry-run"), "3 dead letters", "d2"),
    ]
    for given, told, first in plan:
        shown, _ = terminal(*given)
        assert told in shown
        assert first in shown
        assert " m5 " not in shown  # "m5" may begin a time: a colour ends with an m
    assert orders.counts().sizes.delayed == 7
    done, _ = terminal("cancel", "orders", *GROUP, "--undo")
    assert "within 10 minutes: bide undo orders " in done
    undo = done.split("bide undo orders ")[1][:26]
    assert "7 messages restored" in terminal("undo", "orders", undo)[0]
    assert "taken back before" in terminal("undo", "orders", undo)[0]
