"""Dead letters are listed, shown, revived and purged by id, by error, and by when they died."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]
Terminal = Callable[..., tuple[str, int]]


@pytest.fixture
def letters(orders: bide.Queue) -> bide.Queue:
    for id, reason in (("a", "ValueError: no"), ("b", "OSError: gone"), ("c", "ValueError: odd")):
        orders.put(1, id=id)
        orders.claim()[0].bury(reason)
    orders.put(1, id="alive", delay=60)
    return orders


def left(queue: bide.Queue) -> str:
    return "".join(letter.id for letter in queue.dead())


CHOICES = [
    (["--error", "ValueError"], "ac"),
    (["--error", "KeyError"], ""),
    (["--after", "2020-01-01T00:00Z"], "abc"),
    (["--before", "2020-01-01T00:00Z"], ""),
    (["b"], "b"),
    (["c", "a", "c"], "ca"),
    (["a", "b", "--error", "OSError"], "b"),
    (["--error", "ValueError", "--before", "2090-01-01T00:00Z"], "ac"),
]
choices = pytest.mark.parametrize(("options", "chosen"), CHOICES)


@choices
def test_list(run: Bide, letters: bide.Queue, options: list[str], chosen: str) -> None:
    result = run("dead", "list", "orders", *options)
    assert result.exit_code == 0
    assert "".join(line.partition("\t")[0] for line in result.stdout.splitlines()) == chosen


def test_list_of_all_queues(run: Bide, letters: bide.Queue, url: str) -> None:
    with bide.Queue("mail", url) as mail:
        mail.put(1, id="m")
        mail.claim()[0].bury("ValueError: no such address")
    lines = [line.split("\t") for line in run("dead", "list").stdout.splitlines()]
    assert [line[:2] for line in lines] == [
        ["mail", "m"],
        ["orders", "a"],
        ["orders", "b"],
        ["orders", "c"],
    ]
    assert len(run("dead", "list", "--limit", "3").stdout.splitlines()) == 3
    result = run("dead", "list", "--error", "ValueError", "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["queue"], one["id"]) for one in found] == [
        ("mail", "m"),
        ("orders", "a"),
        ("orders", "c"),
    ]


@pytest.mark.parametrize(
    ("error", "wanted", "found"),
    [
        ("shop.errors.MyError: no", "MyError", True),
        ("shop.errors.MyError: no", "MyError: no", True),
        ("shop.errors.MyError: no", "errors.My", True),
        ("shop.errors.MyError: no", "shop.errors.MyError", True),
        ("shop.errors.MyError: no", "Error", False),
        ("shop.errors.MyError", "MyError", True),
        ("ValueError: see example.com", "com", False),
        ("exit code 1", "exit code", True),
    ],
)
def test_an_error_is_named_with_or_without_its_module(
    run: Bide, orders: bide.Queue, error: str, wanted: str, found: bool
) -> None:
    orders.put(1, id="a")
    orders.claim()[0].bury(error)
    assert bool(run("dead", "list", "orders", "--error", wanted).stdout) == found


@pytest.mark.process
def test_nothing_found_says_so_on_a_terminal(
    terminal: Terminal, letters: bide.Queue, url: str
) -> None:
    screen, code = terminal("dead", "list", "orders", "--error", "KeyError")
    assert "no matching dead letters in orders" in screen
    assert code == 0
    with bide.Queue("mail", url) as mail:
        mail.put(1)
    assert "no matching dead letters in mail" in terminal("dead", "list", "mail")[0]
    screen, code = terminal("dead", "show", "orders", "--error", "KeyError")
    assert "no matching dead letters in orders" in screen
    assert code == 1
    screen, code = terminal("dead", "list")
    assert re.search(r"id\b.*queue\b.*died\b", screen)
    assert code == 0


@choices
def test_show(run: Bide, letters: bide.Queue, options: list[str], chosen: str) -> None:
    result = run("dead", "show", "orders", "--json", *options)
    assert result.exit_code == (0 if chosen else 1)
    assert "".join(json.loads(line)["id"] for line in result.stdout.splitlines()) == chosen


@choices
def test_revive(run: Bide, letters: bide.Queue, options: list[str], chosen: str) -> None:
    found = run("revive", "orders", "--dry-run", *options)
    assert found.stdout == f"would-revive\t{len(chosen)}\n"
    assert left(letters) == "abc"
    result = run("revive", "orders", *options)
    assert result.exit_code == found.exit_code == (0 if chosen else 1)
    assert left(letters) == "".join(id for id in "abc" if id not in chosen)


@choices
def test_purge(run: Bide, letters: bide.Queue, options: list[str], chosen: str) -> None:
    found = run("dead", "purge", "orders", "--dry-run", *options)
    assert found.stdout == f"would-purge\t{len(chosen)}\n"
    assert left(letters) == "abc"
    result = run("dead", "purge", "orders", "--yes", *options)
    assert result.stdout == f"purged\t{len(chosen)}\n"
    assert left(letters) == "".join(id for id in "abc" if id not in chosen)
    assert letters.counts().flow.purged == len(chosen)
    assert letters.audit()


def test_a_living_message_is_no_dead_letter(run: Bide, letters: bide.Queue) -> None:
    assert run("dead", "purge", "orders", "alive", "--yes").exit_code == 1
    assert run("dead", "list", "orders", "alive").stdout == ""
    result = run("dead", "show", "orders", "a", "alive", "none")
    assert result.exit_code == 1
    assert "alive is not a dead letter of orders: see 'bide get orders alive'" in result.stderr
    assert "none is not a dead letter of orders: see 'bide get orders none'" in result.stderr
    assert result.stdout.startswith("a\t")
    assert letters.counts().sizes.delayed == 1


def test_purge_names_the_ids_that_are_no_dead_letters(run: Bide, letters: bide.Queue) -> None:
    result = run("dead", "purge", "orders", "a", "alive", "none", "--yes")
    assert (result.stdout, result.exit_code) == ("purged\t1\n", 1)
    assert "alive is not a dead letter of orders: see 'bide get orders alive'" in result.stderr
    assert "none is not a dead letter of orders: see 'bide get orders none'" in result.stderr


def test_list_so_many(run: Bide, letters: bide.Queue) -> None:
    result = run("dead", "orders", "--error", "ValueError", "--limit", "1")
    assert len(result.stdout.splitlines()) == 1


def test_revive_all_of_an_error(run: Bide, letters: bide.Queue) -> None:
    assert run("revive", "orders", "--all", "--error", "ValueError").stdout == "revived\t2\n"
    assert run("revive", "orders", "--all").stdout == "revived\t1\n"


@pytest.mark.parametrize("command", [["revive", "orders"], ["dead", "purge", "orders", "--yes"]])
@pytest.mark.parametrize("options", [[], ["a", "--all"], ["--error", ""]])
def test_who_changes_dead_letters_says_which(
    run: Bide, letters: bide.Queue, command: list[str], options: list[str]
) -> None:
    result = run(*command, *options)
    assert result.exit_code == 2
    assert "takes ids, --error, --after and --before, or --all for all" in result.stderr
    assert left(letters) == "abc"


def test_purge_wants_a_yes(run: Bide, letters: bide.Queue) -> None:
    for options in (["--all"], ["a"], ["--error", "ValueError"]):
        assert run("dead", "purge", "orders", *options).exit_code == 2
    assert left(letters) == "abc"


@pytest.mark.process
def test_purge_asks_on_a_terminal(terminal: Terminal, letters: bide.Queue, tmp_path: Path) -> None:
    screen, code = terminal("dead", "purge", "orders", "--error", "ValueError", typed="n\n")
    assert "Delete 2 dead letters of orders permanently?" in screen
    assert (code, left(letters)) == (1, "abc")
    screen, code = terminal("dead", "purge", "orders", "--error", "ValueError", typed="y\n")
    assert "2 dead letters of orders purged" in screen
    assert (code, left(letters)) == (0, "b")
