"""`bide put`."""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import Result

import bide
from tests.system.cli.conftest import Shell

Bide = Callable[..., Result]


def test_prints_the_id_and_stores_what_was_said(run: Bide, orders: bide.Queue) -> None:
    result = run(
        "put",
        "orders",
        '{"order": 42}',
        "--delay",
        "30m",
        "--id",
        "order-42",
        "--priority",
        "5",
        "--expires",
        "1h",
        "--attempts",
        "3",
        "--group",
        "c:7",
        "--header",
        "trace=a=b",
        "--header",
        "lang=de",
    )
    assert (result.output, result.exit_code) == ("order-42\n", 0)
    message = orders.get("order-42")
    assert message is not None
    assert message.body == {"order": 42}
    assert (message.priority, message.attempts, message.group) == (5, 3, "c:7")
    assert message.expires == 3_600_000
    assert message.headers == {"trace": "a=b", "lang": "de"}
    assert message.state == "delayed"


def test_json_tells_the_outcome(run: Bide) -> None:
    found = json.loads(
        run("put", "orders", "1", "--id", "a", "--at", "4000000000", "--json").output
    )
    assert found == {"id": "a", "done": True, "state": "delayed", "due": 4_000_000_000_000}


@pytest.mark.parametrize(
    ("arguments", "stdin", "body"),
    [
        (['"hello"'], None, "hello"),
        (["hello", "--text"], None, "hello"),
        (["3", "--text"], None, "3"),
        (["hello", "--bytes"], None, b"hello"),
        (["-"], '[1, "é"]', [1, "é"]),
        (["-", "--text"], "a\nb\n", "a\nb\n"),
        (["-", "--bytes"], b"\xff\x00", b"\xff\x00"),
    ],
)
def test_the_body_is_json_unless_said_otherwise(
    run: Bide, orders: bide.Queue, arguments: list[str], stdin: str | bytes | None, body: object
) -> None:
    assert run("put", "orders", *arguments, "--id", "a", stdin=stdin).exit_code == 0
    message = orders.get("a")
    assert message is not None
    assert message.body == body


def test_a_pipe_is_told_whether_it_was_stored(run: Bide, orders: bide.Queue) -> None:
    first = run("put", "orders", "1", "--id", "a", "--delay", "1h")
    assert (first.stdout, first.stderr, first.exit_code) == ("a\n", "", 0)
    again = run("put", "orders", "2", "--id", "a")
    assert (again.stdout, again.exit_code) == ("a\n", 0)
    assert again.stderr.startswith("kept the existing message: a is delayed, due ")
    assert run("put", "orders", "2", "--id", "a", "--on-conflict", "raise").exit_code == 1
    assert json.loads(run("put", "orders", "2", "--id", "a", "--json").stdout)["done"] is False
    assert run("put", "orders", "2", "--id", "a", "--json").stderr == ""
    assert run("put", "orders", "2", "--id", "a", "--on-conflict", "replace").stderr == ""
    orders.claim()
    held = run("put", "orders", "2", "--id", "a", "--on-conflict", "replace")
    assert (held.stdout, held.exit_code) == ("a\n", 1)
    assert re.match("not replaced: .+ holds a until ", held.stderr)


def test_a_body_from_a_file(run: Bide, orders: bide.Queue, tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_text('{"big": true}')
    assert run("put", "orders", "--file", str(path), "--id", "a").exit_code == 0
    message = orders.get("a")
    assert message is not None
    assert message.body == {"big": True}


def test_a_body_that_is_no_json_is_refused_with_the_mend(run: Bide, orders: bide.Queue) -> None:
    result = run("put", "orders", "hello")
    assert result.exit_code == 2
    assert "the body is not JSON (" in result.stderr
    assert "): 'hello'; put it with --text" in result.stderr
    assert "object keys must be strings" in run("put", "orders", "{hello").stderr
    for line in ([""], [" "], ["-"]):
        result = run("put", "orders", *line, stdin="")
        assert (result.stdout, result.exit_code) == ("", 2)
        assert "the body is not JSON (Input data was truncated): " in result.stderr
    assert orders.counts().flow.put == 0


DEEP = "[" * 100_000 + "]" * 100_000
"""More than any Python reads: 3.13 goes on where older ones stop after a thousand levels."""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "is not JSON (it is nested too deeply; the limit is 500 levels)"),
        ("[" * 600 + "]" * 600, "nested too deeply: 600 levels, the limit is 500"),
        ('"caf\\ud83d"', r"is not JSON (\ud83d is half of a character: the other half"),
        ('{"a": "\\ude00 x"}', r"is not JSON (\ude00 is half of a character"),
    ],
    ids=["deep", "less deep", "first half", "second half"],
)
@pytest.mark.parametrize("how", ["argument", "stdin", "lines", "edit"])
def test_json_that_nobody_can_read(
    run: Bide, orders: bide.Queue, how: str, text: str, why: str
) -> None:
    orders.put("as it was", id="a")
    arguments = {
        "argument": ["put", "orders", text],
        "stdin": ["put", "orders", "-"],
        "lines": ["put", "orders", "--lines"],
        "edit": ["edit", "orders", "a", text],
    }
    result = run(*arguments[how], stdin=text)
    assert (result.stdout, result.exit_code) == ("", 2)
    assert why in " ".join(result.stderr.split())
    assert [message.body for message in orders.scan()] == ["as it was"]


def test_a_byte_order_mark_before_json_is_left_out(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    """As editors on Windows write it; in text it stays."""
    (tmp_path / "body.json").write_text('{"order": 42}', "utf-8-sig")
    assert run("put", "orders", "--id", "a", "--file", str(tmp_path / "body.json")).exit_code == 0
    assert run("put", "orders", "--lines", stdin="\ufeff1\n2\n").exit_code == 0
    assert run("put", "orders", "\ufefftext", "--text").exit_code == 0
    assert [message.body for message in orders.scan("ready")] == [{"order": 42}, 1, 2, "\ufefftext"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["orders"], "needs one body"),
        (["orders", "1", "--file", __file__], "needs one body"),
        (["orders", "1", "--delay", "soon"], "1h30m"),
        (
            ["orders", "1", "--delay", "soon"],
            "'soon' is not a valid duration; write '250ms', '30s'",
        ),
        (["orders", "1", "--delay=-5"], "'-5' is negative; for now give 0"),
        (["orders", "1", "--delay", "-5m"], "'-5m' is negative; for now give 0"),
        (["orders", "1", "--delay", "nan"], "'nan' is not a finite number of seconds"),
        (["orders", "1", "--delay", "99999d"], "'99999d' is longer than 130 years"),
        (["orders", "1", "--delay", "30000d"], "'30000d' from now is past the year 2100"),
        (["orders", "1", "--expires", "-5m"], "'-5m' is negative\n"),
        (["orders", "1", "--url", "sqlite:///a.db?timeout=abc"], "error: ?timeout='abc' is no"),
        (["orders", "1", "--at", "tomorrow"], "ISO 8601"),
        (["orders", "1", "--at", "1795241949570"], "looks like milliseconds, give seconds"),
        (["orders", "1", "--delay", "1s", "--at", "4000000000"], "--delay or --at, not both"),
        (["orders", "1", "--priority", "256"], "256"),
        (["orders", "1", "--attempts", "0"], "0"),
        (["orders", "1", "--header", "x"], "NAME=VALUE"),
        (["orders", "1", "--header", "a=1", "--header", "a=2"], "'a' is given twice"),
        (["orders", "1", "--id", ""], "0 bytes"),
        (["no queue", "1"], "is not a valid name of a queue"),
        (["orders", "-", "--lines", "--id", "x"], "no --id, "),
        (["orders", "1", "--lines"], "stdin or --file"),
        (["orders", "\udcff", "--text"], "not UTF-8 text"),
        (["orders", "-", "--lines", "--if-version", "0" * 16], "--if-version"),
    ],
)
def test_wrong_usage_says_why(run: Bide, arguments: list[str], word: str) -> None:
    result = run("put", *arguments)
    assert result.exit_code == 2
    assert word in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_a_naive_moment_is_refused_with_the_local_one(run: Bide) -> None:
    result = run("put", "orders", "1", "--at", "2026-12-01T09:00")
    assert result.exit_code == 2
    assert "has no time zone" in result.stderr
    assert re.search(r"write 2026-12-01T09:00:00[+-]\d\d", result.stderr)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process cannot be changed")
@pytest.mark.parametrize(
    ("naive", "said"),
    [
        ("2027-03-28T02:30", "the clocks of the zone skip or show twice; write an offset"),
        ("2026-10-25T02:30", "the clocks of the zone skip or show twice; write an offset"),
        ("2027-06-01T09:00:30", "write 2027-06-01T09:00:30+02:00, for UTC add a Z"),
        ("9999-12-31", "is not between 1970 and 2100"),
    ],
)
def test_a_naive_moment_where_clocks_are_changed(
    run: Bide, monkeypatch: pytest.MonkeyPatch, naive: str, said: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        result = run("put", "orders", "1", "--at", naive)
    time.tzset()
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("written", "utc"),
    [
        ("2026-12-01 09:00 Europe/Berlin", "2026-12-01T08:00Z"),
        ("2026-12-01T09:00[Europe/Berlin]", "2026-12-01T08:00Z"),
        ("2026-12-01T09:00:00.5 [UTC]", "2026-12-01T09:00:00.5Z"),
        ("2027-07-01 09:00 America/Argentina/Buenos_Aires", "2027-07-01T12:00Z"),
        ("2026-10-25T02:30+02:00[Europe/Berlin]", "2026-10-25T00:30Z"),
        ("2026-10-25T02:30+01:00[Europe/Berlin]", "2026-10-25T01:30Z"),
        ("2027-03-28 03:00 Europe/Berlin", "2027-03-28T01:00Z"),
    ],
)
def test_a_moment_may_name_its_zone(run: Bide, orders: bide.Queue, written: str, utc: str) -> None:
    assert run("put", "orders", "1", "--id", "a", "--at", written).exit_code == 0
    found = orders.get("a")
    assert found is not None
    assert found.due_at == datetime.fromisoformat(utc)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("2027-03-28 02:30 Europe/Berlin", "the clocks of the zone skip or show twice; write an"),
        ("2026-10-25 02:30 Europe/Berlin", "the clocks of the zone skip or show twice; write an"),
        ("2026-12-01T09:00+02:00[Europe/Berlin]", "has an offset that its zone does not have"),
        ("2026-12-01 09:00 Europe/Bonn", "'Europe/Bonn' is not known here"),
        ("2026-12-01 09:00 ../../etc/passwd", "is not a valid time"),
        ("1 Europe/Berlin", "is not a valid time"),
        ("9999-12-31T23:59 America/New_York", "is not between 1970 and 2100"),
    ],
)
def test_a_moment_that_its_zone_has_not_once(run: Bide, written: str, said: str) -> None:
    result = run("put", "orders", "1", "--at", written)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")


def test_iso_moments_with_a_zone_name_the_same_moment(run: Bide, orders: bide.Queue) -> None:
    for number, at in enumerate(("2026-12-01T09:00+01:00", "2026-12-01T08:00Z", "1796112000")):
        assert run("put", "orders", "1", "--at", at, "--id", f"m{number}").exit_code == 0
    dues = {message.due for message in orders.scan()}
    assert dues == {1_796_112_000_000}


def test_an_id_that_is_there_already(run: Bide, orders: bide.Queue) -> None:
    put = ("put", "orders", "--id", "a", "--delay", "1h")
    assert run(*put, "1").exit_code == 0
    assert run(*put, "2").exit_code == 0
    assert [message.body for message in orders.scan()] == [1]
    refused = run(*put, "2", "--on-conflict", "raise")
    assert refused.exit_code == 1
    assert "a was not stored: it is delayed" in refused.stderr
    assert "--on-conflict 'keep' or 'replace'" in refused.stderr
    assert run(*put, "3", "--on-conflict", "replace").exit_code == 0
    assert [message.body for message in orders.scan()] == [3]


def test_replacing_what_a_worker_holds_is_not_done(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    orders.claim()
    assert run("put", "orders", "2", "--id", "a", "--on-conflict", "replace").exit_code == 1


def test_replacing_only_what_is_still_as_it_was_seen(run: Bide, orders: bide.Queue) -> None:
    first = orders.put(1, id="a", delay="1h")
    (seen,) = orders.scan()
    orders.put(2, id="a", at=first.due_at, on_conflict="replace")
    put = ("put", "orders", "3", "--id", "a", "--on-conflict", "replace", "--if-version")
    refused = run(*put, seen.version)
    assert (refused.stdout, refused.exit_code) == ("a\n", 1)
    assert refused.stderr.startswith("not replaced: a is delayed, due ")
    assert refused.stderr.endswith(", and no longer as you saw it\n")
    (now,) = orders.scan()
    assert (now.body, run(*put, now.version).exit_code) == (2, 0)
    assert [message.body for message in orders.scan()] == [3]
    orders.cancel("a")
    gone = run(*put, now.version)
    assert gone.stderr.startswith("not replaced: there is no such message in the queue")
    assert gone.exit_code == 1
    assert list(orders.scan()) == []


def test_replacing_what_was_seen_makes_no_queue_and_no_store(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    put = ("put", "ordrs", "3", "--id", "a", "--on-conflict", "replace", "--if-version", "0" * 16)
    absent = run(*put)
    assert (absent.stdout, absent.exit_code) == ("", 3)
    assert list(tmp_path.iterdir()) == []
    orders.put(1)
    absent = run(*put)
    assert (absent.stdout, absent.exit_code) == ("", 1)
    assert "there is no queue 'ordrs'" in absent.stderr
    assert "there are: orders\n" in absent.stderr


def test_what_was_seen_has_an_id_and_is_replaced(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    for more in ([], ["--id", "a"], ["--on-conflict", "replace"]):
        refused = run("put", "orders", "1", *more, "--if-version", "0" * 16)
        assert refused.exit_code == 2
        assert "add its id and --on-conflict" in refused.stderr


def test_lines_put_a_message_each(run: Bide, orders: bide.Queue) -> None:
    lines = "\n".join(f'{{"n": {n}}}' for n in range(2_500))
    result = run("put", "orders", "--lines", "--delay", "1h", "--group", "g", stdin=lines)
    assert (result.output, result.exit_code) == ("stored\t2500\nrefused\t0\n", 0)
    assert sorted(message.body["n"] for message in orders.scan()) == list(range(2_500))
    assert {message.group for message in orders.scan()} == {"g"}


def test_lines_skip_empty_ones_and_name_a_bad_one(run: Bide, orders: bide.Queue) -> None:
    result = run("put", "orders", "--lines", stdin='"a"\n\n{oops\n')
    assert result.exit_code == 2
    assert "line 3 is not JSON" in result.stderr
    assert "no line is known to be put\n" in result.stderr
    assert orders.counts().flow.put == 0
    lines = "1\n" * 1_500 + "{oops\n"
    result = run("put", "orders", "--lines", stdin=lines)
    assert "line 1501 is not JSON" in result.stderr
    assert "the lines up to line 1000 were put\n" in result.stderr
    assert orders.counts().flow.put == 1_000


def test_lines_name_one_that_is_too_large_and_what_was_put_before_it(
    run: Bide, orders: bide.Queue
) -> None:
    lines = "1\n" * 1_500 + f'"{"x" * 50}"\n'
    result = run("put", "orders", "--lines", "--max-body", "20", stdin=lines)
    assert result.exit_code == 2
    assert "the lines up to line 1000 were put\n" in result.stderr
    assert "error: line 1501: body takes 52 bytes, the limit is 20" in result.stderr
    assert orders.counts().flow.put == 1_000


def test_lines_into_a_closed_group_are_refused(run: Bide, orders: bide.Queue) -> None:
    orders.close_group("g")
    result = run("put", "orders", "--lines", "--group", "g", stdin="1\n2\n3\n")
    assert (result.stdout, result.exit_code) == ("stored\t0\nrefused\t3\n", 1)
    assert "not stored: 3 messages, whose group g is closed\n" in result.stderr
    assert orders.counts().flow.put == 0


def test_lines_of_text_from_a_file_with_dos_ends(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\r\ntwo\r\nthree")
    assert run("put", "orders", "--lines", "--text", "--file", str(path)).exit_code == 0
    assert sorted(message.body for message in orders.scan()) == ["one", "three", "two"]


def test_a_body_that_is_too_large(run: Bide, orders: bide.Queue) -> None:
    put = ("put", "orders", "x" * 100, "--text", "--max-body")
    refused = run(*put, "101")
    assert refused.exit_code == 2
    assert "102 bytes" in refused.stderr
    assert "raise the limit with --max-body" in refused.stderr
    assert run(*put, "102").exit_code == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("put orders - --text", "the body has more than 1,048,576 bytes; the rest was not read"),
        ("put orders - --bytes --max-body 10", "the body has more than 10 bytes"),
        ("put orders -", "the body has more than 6,291,456 bytes of JSON text"),
        ("put orders --file /dev/zero --bytes", "the body has more than 1,048,576 bytes"),
        (
            "put orders --lines --text",
            "line 2 has more than 1,048,576 bytes",
        ),
        ("import orders -", "line 2 has more than 14,680,064 bytes"),
        ("edit orders a - --text", "the body has more than 1,048,576 bytes"),
    ],
)
def test_endless_input_is_read_to_the_limit(shell: Shell, line: str, why: str) -> None:
    endless = "(echo; tr '\\0' x < /dev/zero) | timeout 50"
    done = shell(f"ulimit -v 4000000; {endless} bide {line}")
    assert done.returncode == 2, done
    assert why in done.stderr


def test_json_text_may_be_longer_than_its_body(run: Bide) -> None:
    text = '"' + "\\u0041" * 10 + '"'
    assert run("put", "orders", "-", "--max-body", "12", stdin=text).exit_code == 0
    refused = run("put", "orders", "-", "--max-body", "10", stdin=text)
    assert refused.exit_code == 2
    assert "60 bytes of JSON text, 6 times --max-body" in refused.stderr


def test_what_is_bides_own_takes_no_messages(run: Bide, url: str, tmp_path: Path) -> None:
    for queue in ("bide:move", "shop/bide:x", "bide.server/tokens"):
        result = run("put", queue, "1")
        assert result.exit_code == 2
        assert f"{queue!r} is bide's own" in result.stderr
    assert not (tmp_path / "test.db").exists()


def test_latest_debounces(run: Bide, orders: bide.Queue) -> None:
    more = ("--id", "a", "--on-conflict", "replace", "--delay", "1h", "--latest", "90m")
    assert run("put", "orders", "1", *more).exit_code == 0
    orders.reschedule("a", delay=0)
    (held,) = orders.claim()
    done = run("put", "orders", "2", *more)
    assert (done.stdout, done.exit_code) == ("a\n", 0)
    found = json.loads(run("put", "orders", "3", *more, "--json").stdout)
    assert (found["done"], found["state"]) == (True, "leased")
    shown = json.loads(run("get", "orders", "a", "--json").stdout)
    assert shown["successor"] == found["successor"] > shown["due"]
    held.ack()
    message = orders.get("a")
    assert message is not None
    assert message.body == 3
    refused = run("put", "orders", "1", "--latest", "90m", "--delay", "1h")
    assert refused.exit_code == 2
    assert "--latest" in refused.stderr
    assert run("put", "orders", "--lines", "--latest", "1h", stdin="1\n").exit_code == 2


def test_a_spread_is_a_time_of_the_id(run: Bide, orders: bide.Queue) -> None:
    span = ("--at", "4000000000", "--spread", "15m")
    found = json.loads(run("put", "orders", "1", *span, "--id", "user-1", "--json").stdout)
    assert found["due"] == 4_000_000_698_765
    assert run("put", "orders", "--lines", *span, stdin="1\n2\n3\n").exit_code == 0
    dues = {message.due for message in orders.scan()}
    assert len(dues) == 4
    assert all(4_000_000_000_000 <= due < 4_000_000_900_000 for due in dues)
    refused = run("put", "orders", "1", "--spread", "soon")
    assert refused.exit_code == 2
    assert "--spread" in refused.stderr
