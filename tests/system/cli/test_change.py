"""bide cancel, reschedule, edit, and undo."""

import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from click.testing import Result

import bide
from tests.system.cli.conftest import Terminal
from tests.system.cli.test_terminal import plain
from tests.waiting import until

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


# Cancel what workers are at work on.


@pytest.fixture
def held(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url, holder="web-1:99", actor="ann") as orders:
        orders.put(1, id="a", group="g")
        orders.put(1, id="b", group="g", delay=60)
        yield orders


def test_cancel_asks_a_worker_to_stop(run: Bide, held: bide.Queue) -> None:
    held.claim()
    result = run("cancel", "orders", "a", "b", "--running")
    assert result.exit_code == 0
    a, b = result.output.splitlines()
    assert a.startswith("a\tstopping\tleased\tweb-1:99 was asked to stop, and holds it until ")
    assert a.endswith("; unless it still acks, the message counts as cancelled")
    assert b == "b\tcancelled\tgone\t"
    told = json.loads(run("cancel", "orders", "a", "--running", "--json").output)
    assert (told["done"], told["state"], told["holder"]) == (False, "stopping", "web-1:99")
    message = json.loads(run("get", "orders", "a", "--json").output)
    assert message["stopping"] == held.get("a").stopping  # type: ignore[union-attr]
    assert "has asked web-1:99 to stop" in run("explain", "orders", "a").output


@pytest.mark.parametrize(
    ("end", "line", "code"),
    [
        ("release", "a\tcancelled\tgone\t", 0),
        ("ack", "a\tno\tacked\tit is acked since ", 1),
        (None, "a\tstopping\tleased\tweb-1:99 was asked to stop, and holds it until ", 1),
    ],
)
def test_cancel_waits_for_the_end(
    run: Bide, held: bide.Queue, end: str | None, line: str, code: int
) -> None:
    [delivery] = held.claim()

    def settle() -> None:
        until(lambda: (message := held.get("a")) is not None and message.stopping is not None)
        if end is not None:
            getattr(delivery, end)()

    worker = threading.Thread(target=settle)
    worker.start()
    result = run("cancel", "orders", "a", "--running", "--wait", "60s" if end else "100ms")
    worker.join()
    assert result.output.startswith(line)
    assert result.exit_code == code


def test_cancel_sees_the_end_of_a_lease(run: Bide, held: bide.Queue) -> None:
    held.claim(lease=0.05)
    result = run("cancel", "orders", "a", "--running", "--wait", "100ms")
    assert (result.output, result.exit_code) == ("a\tcancelled\tgone\t\n", 0)


def test_cancel_by_group_counts_what_is_stopping(run: Bide, held: bide.Queue) -> None:
    held.claim()
    by_group = ("cancel", "orders", "--group", "g", "--running")
    assert run(*by_group, "--dry-run").output == "would-cancel\t2\n"
    assert json.loads(run(*by_group, "--dry-run", "--json").output)["cancelled"] == 2
    done = run(*by_group)
    assert (done.output, done.exit_code) == ("cancelled\t1\nstopping\t1\n", 0)
    again = run(*by_group, "--json")
    assert (json.loads(again.output), again.exit_code) == ({"cancelled": 0, "stopping": 0}, 1)


def test_a_version_is_a_condition_of_stopping_too(run: Bide, held: bide.Queue) -> None:
    held.claim()
    seen = version(run, "a")
    assert run("cancel", "orders", "a", "--running", "--if-version", "0" * 16).exit_code == 1
    assert run("cancel", "orders", "a", "--running", "--if-version", seen).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("a --wait 5s", "--wait is for ids with --running"),
        ("--group g --running --wait 5s", "--wait is for ids with --running"),
        ("--group g --running --undo", "what was stopped cannot go on"),
    ],
)
def test_what_cannot_be_asked_of_running_work_is_refused(
    run: Bide, orders: bide.Queue, arguments: str, text: str
) -> None:
    result = run("cancel", "orders", *arguments.split())
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.full
@pytest.mark.process
def test_people_see_how_far_work_has_come_and_who_stops_it(
    terminal: Terminal, held: bide.Queue
) -> None:
    [delivery] = held.claim()
    delivery.report(40, of=100, text="rows")
    assert "leased 40 %" in plain(terminal("scan", "orders")[0])
    sheet = plain(terminal("get", "orders", "a")[0])
    assert re.search(r"progress  ━{20} 40 of 100 rows \(40 %\)  (\d.* ago|now)", sheet)
    screen = plain(terminal("cancel", "orders", "a", "--running")[0])
    assert "! a is stopping: web-1:99 was asked to stop, and holds it until " in screen
    assert "stopping 40 %" in plain(terminal("scan", "orders")[0])
    assert "web-1:99 was asked to stop" in plain(terminal("get", "orders", "a")[0])
    assert "to stop; 40 of 100 rows (40 %)" in plain(terminal("explain", "orders", "a")[0])
    screen, code = terminal("cancel", "orders", "--group", "g", "--running")
    assert ("1 message cancelled" in plain(screen), code) == (True, 0)


def test_extend_says_that_the_message_was_cancelled(run: Bide, held: bide.Queue) -> None:
    [delivery] = held.claim()
    held.cancel("a", running=True)
    result = run("extend", "orders", "a", str(delivery.token))
    told = "a\textended\tleased\tit was cancelled: stop working on it, and release it\n"
    assert (result.output, result.exit_code) == (told, 0)


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
        ("reschedule orders a --delay 1 --if-version x", "--if-version 'x' is not a version"),
        ("cancel orders a b --if-version 0123456789abcdef", "--if-version is the version of one"),
    ],
)
def test_a_version_that_cannot_be(run: Bide, orders: bide.Queue, line: str, told: str) -> None:
    orders.put(1)
    refused = run(*line.split())
    assert (told in refused.stderr, refused.exit_code) == (True, 2), refused.stderr


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
        ([], "nothing to edit"),
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


@pytest.mark.full
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


# bide close-group, closed-groups, reopen-group.


def test_a_group_is_closed_listed_and_opened(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", delay=60, group="order:42")
    closed = json.loads(run("close-group", "orders", "order:42", "--keep", "2d", "--json").output)
    assert (closed["group"], closed["cancelled"], closed["stopping"]) == ("order:42", 1, 0)
    assert not orders.put(2, id="b", group="order:42")
    refused = run("put", "orders", "1", "--group", "order:42")
    assert refused.exit_code == 1
    assert "not stored: the group of " in refused.stderr
    assert run("closed-groups", "orders").output.startswith("order:42\t")
    opened = run("reopen-group", "orders", "order:42")
    assert opened.exit_code == 0
    assert run("reopen-group", "orders", "order:42").exit_code == 1
    assert run("closed-groups", "orders").exit_code == 0
    assert orders.put(2, id="b", group="order:42")
