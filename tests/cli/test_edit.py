"""`bide edit`, and `bide reschedule --group`."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]

FAR = 4_000_000_000


def test_edit_changes_what_is_named(run: Bide, orders: bide.Queue) -> None:
    orders.put({"n": 1}, id="a", at=FAR, group="g", headers={"h": "v"}, expires="1h", priority=3)
    result = run("edit", "orders", "a", '{"n": 2}', "--attempts", "4", "--header", "x=y")
    assert (result.output, result.exit_code) == ("a\tedited\tdelayed\t\n", 0)
    message = orders.get("a")
    assert message is not None
    assert (message.body, message.attempts, message.headers) == ({"n": 2}, 4, {"x": "y"})
    assert (message.group, message.priority, message.expires) == ("g", 3, 3_600_000)
    run("edit", "orders", "a", "--no-group", "--no-headers", "--no-expires", "--priority", "0")
    message = orders.get("a")
    assert message is not None
    assert (message.group, message.headers, message.expires) == (None, None, None)
    assert (message.body, message.priority, message.due) == ({"n": 2}, 0, FAR * 1_000)


def test_edit_reads_a_body_from_stdin_or_as_bytes(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", at=FAR)
    run("edit", "orders", "a", "-", "--text", stdin="good morning")
    assert orders.get("a").body == "good morning"  # type: ignore[union-attr]
    run("edit", "orders", "a", "raw", "--bytes", "--at", str(FAR + 1))
    message = orders.get("a")
    assert message is not None
    assert (message.body, message.due) == (b"raw", (FAR + 1) * 1_000)


def test_edit_tells_why_not(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", at=FAR)
    version = orders.get("a").version  # type: ignore[union-attr]
    assert run("edit", "orders", "a", "2", "--if-version", version).exit_code == 0
    late = run("edit", "orders", "a", "3", "--if-version", version)
    assert late.exit_code == 1
    assert late.output.startswith("a\tno\tdelayed\tit is delayed, due ")
    assert "no longer as you saw it" in late.output
    missing = run("edit", "orders", "b", "3", "--json")
    assert (json.loads(missing.output)["done"], missing.exit_code) == (False, 1)
    assert "no queue 'odrers'" in run("edit", "odrers", "b", "3").stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "needs to know what to change"),
        (["--text"], "--text says what the body is"),
        (["{"], "is not JSON"),
        (["--group", "g", "--no-group"], "cannot be used together"),
        (["--priority", "256"], "256"),
        (["--delay", "1", "--at", "4000000000"], "not both"),
    ],
)
def test_edit_refuses(run: Bide, orders: bide.Queue, arguments: list[str], told: str) -> None:
    orders.put(1, id="a", at=FAR)
    result = run("edit", "orders", "a", *arguments)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert orders.get("a").body == 1  # type: ignore[union-attr]


def test_reschedule_a_group(run: Bide, orders: bide.Queue) -> None:
    orders.put_many(range(1_200), at=FAR, group="g")
    orders.put(1, id="other", at=FAR)
    to = ("--group", "g", "--at", str(FAR + 60))
    dry = run("reschedule", "orders", *to, "--dry-run")
    assert (dry.output, dry.exit_code) == ("would-reschedule\t1200\n", 0)
    done = run("reschedule", "orders", *to, "--json")
    assert (json.loads(done.output), done.exit_code) == ({"rescheduled": 1_200}, 0)
    moved = orders.scan("delayed", after=FAR + 60)
    assert sum(1 for _ in moved) == 1_200
    assert run("reschedule", "orders", *to, "--before", str(FAR)).exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["a", "--group", "g"], ["a", "--dry-run"], ["--group", "g", "--if-due", "4000000000"]],
)
def test_reschedule_takes_an_id_or_a_group(run: Bide, arguments: list[str]) -> None:
    result = run("reschedule", "orders", *arguments, "--delay", "1h")
    assert result.exit_code == 2
    assert "takes an id" in result.stderr
