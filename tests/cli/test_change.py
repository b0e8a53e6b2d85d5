"""`bide cancel` and `bide reschedule`."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

import bide

Bide = Callable[..., Result]


def test_cancel_is_final(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", delay=60)
    result = run("cancel", "orders", "a")
    assert (result.output, result.exit_code) == ("a\tcancelled\tgone\t\n", 0)
    assert orders.get("a") is None


def test_cancel_tells_who_holds_it(run: Bide, url: str) -> None:
    with bide.Queue("orders", url, holder="web-1:99") as orders:
        orders.put(1, id="a")
        orders.claim()
    result = run("cancel", "orders", "a", "missing")
    assert result.exit_code == 1
    held, missing = result.output.splitlines()
    assert held.startswith("a\tno\tleased\tweb-1:99 holds it until ")
    assert missing.startswith("missing\tno\tgone\tthere is no such message")


def test_cancel_as_json(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", at=4_000_000_000)
    result = run("cancel", "orders", "a", "b", "--json")
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"id": "a", "done": True, "state": None, "due": 4_000_000_000_000},
        {"id": "b", "done": False, "state": None},
    ]
    assert result.exit_code == 1


def test_cancel_only_what_is_still_due_then(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", at=4_000_000_000)
    assert run("cancel", "orders", "a", "--if-due", "4000000001").exit_code == 1
    assert run("cancel", "orders", "a", "--if-due", "4000000000").exit_code == 0


def test_cancel_by_group_counts(run: Bide, orders: bide.Queue) -> None:
    orders.put_many(range(2_300), delay=60, group="g")
    orders.put(1, id="other", delay=60)
    dry = run("cancel", "orders", "--group", "g", "--dry-run")
    assert (dry.output, dry.exit_code) == ("would-cancel\t2300\n", 0)
    dry = run("cancel", "orders", "--group", "g", "--dry-run", "--json")
    assert json.loads(dry.output) == {"cancelled": 2_300, "dry_run": True}
    assert orders.counts().sizes.delayed == 2_301
    done = run("cancel", "orders", "--group", "g", "--json")
    assert (json.loads(done.output), done.exit_code) == ({"cancelled": 2_300}, 0)
    assert [message.id for message in orders.scan()] == ["other"]
    assert run("cancel", "orders", "--group", "g").exit_code == 1


def test_cancel_a_span_of_time(run: Bide, orders: bide.Queue) -> None:
    for second in range(4):
        orders.put(second, id=f"m{second}", at=4_000_000_000 + second)
    span = ("--after", "4000000001", "--before", "4000000003")
    assert run("cancel", "orders", *span).output == "cancelled\t2\n"
    assert [message.id for message in orders.scan("delayed")] == ["m0", "m3"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "--group", "g"],
        ["a", "--dry-run"],
        ["--group", "g", "--if-due", "4000000000"],
        ["--group", "g", "--if-version", "0123456789abcdef"],
    ],
)
def test_cancel_takes_ids_or_a_rule(run: Bide, arguments: list[str]) -> None:
    result = run("cancel", "orders", *arguments)
    assert result.exit_code == 2
    assert "takes ids" in result.stderr


def test_reschedule_moves(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", delay=60)
    result = run("reschedule", "orders", "a", "--at", "4000000000")
    assert (result.output, result.exit_code) == ("a\trescheduled\tdelayed\t\n", 0)
    message = orders.get("a")
    assert message is not None
    assert message.due == 4_000_000_000_000
    assert run("reschedule", "orders", "a", "--delay", "0", "--if-due", "4000000001").exit_code == 1
    assert run("reschedule", "orders", "b", "--delay", "0").exit_code == 1


def test_a_year_is_no_time(run: Bide, orders: bide.Queue) -> None:
    """As Unix seconds, 2027 was in 1970: all messages are due after that."""
    orders.put(1, id="a", delay="1h")
    for option in ("--after", "--before"):
        result = run("cancel", "orders", option, "2027")
        assert result.exit_code == 2
        text = " ".join(result.stderr.split())
        assert "'2027' is 1970-01-01T00:33:47.000Z in Unix seconds" in text
        assert "for a year write 2027-01-01T00:00Z see" in text
    assert orders.get("a") is not None
    assert run("put", "orders", "1", "--at", "60").exit_code == 2
    late = run("put", "orders", "1", "--delay", "1893456000")
    assert late.exit_code == 2
    assert "looks like a time in Unix seconds" in " ".join(late.stderr.split())
    assert orders.counts().flow.put == 1


def test_reschedule_needs_a_moment(run: Bide) -> None:
    result = run("reschedule", "orders", "a")
    assert result.exit_code == 2
    assert "--delay or --at" in result.stderr
    both = run("reschedule", "orders", "a", "--delay", "1h", "--at", "4000000000")
    assert "needs one new due time: --delay or --at" in both.stderr


def version(run: Bide, id: str) -> str:
    return str(json.loads(run("get", "orders", id, "--json").output)["version"])


def test_change_only_what_is_still_as_it_was_seen(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", at=4_000_000_000)
    seen = version(run, "a")
    assert seen == orders.scan().__next__().version
    orders.put(2, id="a", at=4_000_000_000, on_conflict="replace")
    for line in ("cancel orders a", "reschedule orders a --delay 1h"):
        refused = run(*line.split(), "--if-version", seen)
        assert refused.exit_code == 1
        assert refused.output.startswith("a\tno\tdelayed\tit is delayed, due ")
        assert refused.output.endswith(", and no longer as you saw it\n")
    moved = run("reschedule", "orders", "a", "--delay", "1h", "--if-version", version(run, "a"))
    assert (moved.output, moved.exit_code) == ("a\trescheduled\tdelayed\t\n", 0)
    done = run("cancel", "orders", "a", "--if-version", version(run, "a"))
    assert (done.output, done.exit_code) == ("a\tcancelled\tgone\t\n", 0)


def test_a_message_that_is_held_may_be_as_it_was_seen(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    seen = version(run, "a")
    orders.claim()
    refused = run("cancel", "orders", "a", "--if-version", seen)
    assert " holds it until " in refused.output
    assert "as you saw it" not in refused.output


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "cancel orders a --if-version 7",
            "; give the version of the message you read",
        ),
        ("reschedule orders a --delay 1 --if-version x", "--if-version 'x' is no version"),
        ("cancel orders a b --if-version 0123456789abcdef", "--if-version is the version of one"),
    ],
)
def test_a_version_that_cannot_be(run: Bide, orders: bide.Queue, line: str, told: str) -> None:
    orders.put(1)
    refused = run(*line.split())
    assert (told in refused.stderr, refused.exit_code) == (True, 2), refused.stderr
