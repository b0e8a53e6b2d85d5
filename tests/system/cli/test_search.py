"""`bide search`."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]


@pytest.fixture(autouse=True)
def mail(orders: bide.Queue, url: str) -> None:
    orders.put({"n": 1}, id="order-1", at=4e9, group="g")
    orders.put({"n": 2}, id="order-2", at=4e9)
    with bide.Queue("mail", url) as queue:
        queue.put("to Ann", id="note")
        queue.claim()[0].bury("Timeout\nafter 5 s")


def test_search_in_a_pipe(run: Bide) -> None:
    result = run("search", "--id", "order-")
    assert [line.split("\t")[:3] for line in result.output.splitlines()] == [
        ["orders", "order-1", "delayed"],
        ["orders", "order-2", "delayed"],
    ]
    dead = run("search", "--error", "Timeout").output.rstrip("\n").split("\t")
    assert (dead[0], dead[2], dead[6:]) == ("mail", "dead", ["Timeout", '"to Ann"'])
    assert run("search", "mail", "--id", "order-").exit_code == 1
    assert json.loads(run("search", "--body", "Ann", "--json").output)["queue"] == "mail"


def test_search_says_how_to_go_on(run: Bide) -> None:
    first = run("search", "--body", '"n":2', "--read", "2")
    assert " found; searched 2 of 3 messages; go on with --cursor " in first.stderr
    rest = run("search", "--body", '"n":2', "--cursor", first.stderr.split()[-1])
    assert "order-2" in first.output + rest.output


def test_search_needs_to_know_what(run: Bide) -> None:
    result = run("search", "order-1")
    assert result.exit_code == 2
    assert "search needs a condition: --id, " in result.stderr
