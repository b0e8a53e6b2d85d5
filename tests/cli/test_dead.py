"""Dead letters are chosen by their error and by when they died."""

from collections.abc import Callable

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]


@pytest.fixture
def letters(orders: bide.Queue) -> bide.Queue:
    for id, reason in (("a", "ValueError: no"), ("b", "OSError: gone"), ("c", "ValueError: odd")):
        orders.put(1, id=id)
        orders.claim()[0].bury(reason)
    return orders


def ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.partition("\t")[0] for line in result.stdout.splitlines()]


def test_list_by_error(run: Bide, letters: bide.Queue) -> None:
    assert ids(run("dead", "list", "orders")) == ["a", "b", "c"]
    assert ids(run("dead", "list", "orders", "--error", "ValueError")) == ["a", "c"]
    assert ids(run("dead", "list", "orders", "--error", "KeyError")) == []
    assert ids(run("dead", "orders", "--error", "ValueError", "--limit", "1")) == ["a"]


def test_list_by_time(run: Bide, letters: bide.Queue) -> None:
    assert ids(run("dead", "list", "orders", "--after", "2020-01-01T00:00Z")) == ["a", "b", "c"]
    assert ids(run("dead", "list", "orders", "--before", "2020-01-01T00:00Z")) == []


def test_revive_by_error(run: Bide, letters: bide.Queue) -> None:
    result = run("revive", "orders", "--all", "--error", "ValueError")
    assert result.stdout == "revived\t2\n"
    assert [letter.id for letter in letters.dead()] == ["b"]


def test_a_choice_does_not_go_with_ids(run: Bide, letters: bide.Queue) -> None:
    result = run("revive", "orders", "a", "--error", "OSError")
    assert result.exit_code == 2
    assert "they go with --all" in result.stderr
    assert letters.counts().sizes.dead == 3
