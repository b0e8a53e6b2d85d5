"""What is read: get, peek, scan, queues, counts, forecast, audit, history, result."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import bide
from bide.model.commands import Put
from bide.model.message import Item
from bide.testing.hooks import execute

Bide = Callable[..., Result]


def test_get_as_a_line_and_as_json(run: Bide, orders: bide.Queue) -> None:
    orders.put({"n": 1}, id="a", at=4_000_000_000, group="g")
    line = run("get", "orders", "a").output
    assert line == 'a\tdelayed\t2096-10-02T07:06:40.000Z\t0\t0/10\tg\t{"n":1}\n'
    found = json.loads(run("get", "orders", "a", "--json").output)
    (message,) = orders.scan()
    assert found.pop("version") == message.version
    assert found.pop("created") == message.created
    assert found == {
        "id": "a",
        "queue": "orders",
        "state": "delayed",
        "due": 4_000_000_000_000,
        "priority": 0,
        "attempt": 0,
        "attempts": 10,
        "group": "g",
        "body": {"n": 1},
    }


def test_what_bide_keeps_for_itself_is_shown_when_it_is_asked_for(
    run: Bide, orders: bide.Queue, url: str
) -> None:
    orders.put(1)
    kept = ("bide.server/tokens", "bide:move", "bide:source:orders:unpaid", "shop/bide:workers")
    for name in kept:
        with bide.Queue(name, url) as queue:
            queue.put(1)

    def names(*arguments: str) -> list[str]:
        lines = run(*arguments, "--json").output.splitlines()
        return [json.loads(line)["queue"] for line in lines]

    assert names("queues") == names("audit") == ["orders"]
    assert names("queues", "--all") == names("audit", "--all") == sorted([*kept, "orders"])
    assert names("queues", "bide:") == list(kept[1:3])
    assert names("queues", "bide.server/") == [kept[0]]
    assert names("audit", "bide:move") == ["bide:move"]
    assert [line.split("\t")[1] for line in run("top").output.splitlines()] == ["orders"]


def test_get_what_is_not_there(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    result = run("get", "orders", "a", "b", "--body")
    assert (result.stdout, result.exit_code) == ("1\n", 1)
    assert "b is not in orders" in result.stderr


@pytest.mark.parametrize(
    ("body", "printed"), [("a b", b"a b\n"), (b"\xff\n", b"\xff\n"), ([1, "é"], '[1,"é"]\n')]
)
def test_get_the_body_alone(
    run: Bide, orders: bide.Queue, body: object, printed: str | bytes
) -> None:
    orders.put(body, id="a")
    expected = printed.encode() if isinstance(printed, str) else printed
    assert run("get", "orders", "a", "--body").stdout_bytes == expected


def test_bytes_are_base64_in_json(run: Bide, orders: bide.Queue) -> None:
    orders.put(b"\xff\x00", id="a")
    found = json.loads(run("get", "orders", "a", "--json").output)
    assert (found["bytes"], "body" in found) == ("/wA=", False)


def test_a_body_of_several_lines_is_on_one_in_json(run: Bide, orders: bide.Queue) -> None:
    execute(orders, Put("orders", [Item("a", b'{\n "n": 1.50\n}', json=True)]))
    (line,) = run("scan", "orders", "--json").output.splitlines()
    assert '"body":{  "n": 1.50 }' in line


def test_peek_shows_what_goes_out_next(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="late", delay=60)
    orders.put(2, id="soon", delay=30)
    orders.put(3, id="now")
    lines = run("peek", "orders", "-n", "2").output.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["now", "soon"]


def test_scan_filters(run: Bide, orders: bide.Queue) -> None:
    for second in range(5):
        orders.put(second, id=f"m{second}", at=4_000_000_000 + second, group=f"g{second % 2}")
    orders.put(9, id="due")

    def ids(*arguments: str) -> list[str]:
        lines = run("scan", "orders", *arguments, "--json").output.splitlines()
        return [json.loads(line)["id"] for line in lines]

    assert sorted(ids()) == ["due", "m0", "m1", "m2", "m3", "m4"]
    assert ids("--state", "ready") == ["due"]
    assert ids("--state", "delayed", "--after", "4000000001", "--before", "4000000003") == [
        "m1",
        "m2",
    ]
    assert sorted(ids("--group", "g1")) == ["m1", "m3"]
    assert len(ids("--limit", "3")) == 3
    assert ids("--limit", str(10**30)) == ids()
    assert run("scan", "orders", "--state", "lost").exit_code == 2


def test_a_body_cannot_speak_to_the_terminal(run: Bide, orders: bide.Queue) -> None:
    orders.put("\x9b31m\u202e\U000e0001", id="a")
    assert run("peek", "orders").output.endswith('"\\u009b31m\\u202e\\udb40\\udc01"\n')  # is JSON


def test_queues(run: Bide, orders: bide.Queue, url: str) -> None:
    orders.put(1)
    with bide.Queue("mail", url) as mail:
        mail.put(1, delay=60)
        mail.pause()
    assert run("queues").output == "mail\t1\t0\t0\t0\tpaused\norders\t0\t1\t0\t0\n"
    assert run("queues", "or").output == "orders\t0\t1\t0\t0\n"
    first = json.loads(run("queues", "--json").output.splitlines()[0])
    assert (first["queue"], first["delayed"], first["paused"]) == ("mail", 1, True)


def test_counts(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, delay=60)
    orders.put(2)
    orders.claim()[0].ack()
    lines = dict(line.split("\t") for line in run("counts", "orders").output.splitlines())
    assert (lines["delayed"], lines["put"], lines["acked"]) == ("1", "2", "1")
    assert lines["paused"] == "false"
    assert json.loads(run("counts", "orders", "--json").output)["put"] == 2


def test_forecast_counts_what_falls_due_when(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    orders.put_many([1, 2, 3], delay="90s")
    orders.put(1, delay="2h")
    lines = run("forecast", "orders", "--horizon", "3m").output.splitlines()
    assert lines[0] == "overdue\t1"
    assert [line.split("\t")[1] for line in lines[1:4]] == ["0", "3", "0"]
    assert lines[4] == "later\t1"
    parts = [json.loads(line) for line in run("forecast", "orders", "--json").output.splitlines()]
    assert parts[0] == {"overdue": 1}
    assert sum(part.get("count", 0) for part in parts) == 3
    assert parts[-1] == {"later": 1}


def test_forecast_refuses_a_million_bars(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    assert run("forecast", "orders", "--bucket", "1ms", "--horizon", "7d").exit_code == 2


def test_audit_balances(run: Bide, orders: bide.Queue, url: str) -> None:
    orders.put_many(range(5))
    orders.ack(orders.claim(2))
    with bide.Queue("mail", url) as mail:
        mail.put(1)
    one = run("audit", "orders")
    assert one.exit_code == 0
    assert one.output.splitlines()[1:3] == ["put\t5", "acked\t2"]
    assert one.output.endswith("balanced\tyes\n")
    every = [json.loads(line) for line in run("audit", "--json").output.splitlines()]
    assert [(found["queue"], found["balanced"]) for found in every] == [
        ("mail", True),
        ("orders", True),
    ]


def test_audit_says_when_it_does_not_balance(run: Bide, orders: bide.Queue, tmp_path: Path) -> None:
    orders.put_many(range(5))
    orders.close()
    damaged = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    damaged.execute("UPDATE bide_queue SET acked = acked + 1")
    damaged.close()
    result = run("audit")
    assert result.exit_code == 1
    assert "balanced\tno: 5 were put, 6 are accounted for" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["counts", "orders"],
        ["peek", "orders"],
        ["scan", "orders"],
        ["get", "orders", "a"],
        ["queues"],
        ["audit"],
        ["forecast", "orders"],
        ["past"],
        ["past", "orders"],
        ["dead", "orders"],
        ["export", "orders"],
    ],
)
def test_looking_makes_no_store(run: Bide, tmp_path: Path, command: list[str]) -> None:
    result = run(*command)
    assert result.exit_code == 3
    assert "there is no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_explain_tells_why(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    orders.pause()
    result = run("explain", "orders", "a", "b")
    assert result.exit_code == 1
    first, second = result.output.splitlines()
    assert first.startswith("a\tready\tpaused,no-worker\ta has been ready since ")
    assert second == "b\tgone\tmissing\tb is not in orders: it never was, or it is gone"
    found = json.loads(run("explain", "orders", "a", "--json", "--language", "zh").output)
    assert found["reasons"] == ["paused", "no-worker"]
    assert "暂停" in found["sentence"]
    assert found["facts"]["ahead"] == 0


def test_history_shows_how_messages_ended(run: Bide, orders: bide.Queue) -> None:
    assert run("set", "orders", "--history", "7d").stdout == (
        "keep\t0\nhistory\t604800000\nresult_ttl\t0\n"
        "limit\t0\nrate\t0\ngroup_limit\t0\ngroup_rate\t0\n"
    )
    orders.put(1, id="a")
    run("cancel", "orders", "a")
    orders.put(1, id="a")
    orders.retry(orders.claim(), reason="no")
    orders.bury(orders.claim(), "bad")
    result = run("history", "orders", "a")
    died, cancelled = (line.split("\t") for line in result.output.splitlines())
    assert (died[0], died[3]) == ("dead", "2")
    assert cancelled[0] == "cancelled"
    assert "@" in cancelled[2]
    found = [json.loads(line) for line in run("history", "orders", "a", "--json").output.split()]
    assert [one["how"] for one in found] == ["dead", "cancelled"]
    assert [attempt["error"] for attempt in found[0]["attempts"]] == ["no", "bad"]
    assert all(attempt["start"] <= attempt["end"] for attempt in found[0]["attempts"])
    nothing = run("history", "orders", "b")
    assert (nothing.stdout, nothing.exit_code) == ("", 1)
    assert nothing.stderr.startswith("nothing is remembered of b in orders: b is not in orders: ")
    assert "bide set" not in nothing.stderr
    orders.put(1, id="b", delay=60)
    waiting = run("history", "orders", "b")
    assert (waiting.stdout, waiting.exit_code) == ("", 1)
    assert waiting.stderr.startswith("nothing is remembered of b in orders: b is due at ")
    orders.configure(history=0)
    assert run("history", "orders", "b").stderr.endswith(
        "; 'bide set orders --history 7d' remembers\n"
    )


def test_get_says_how_a_message_that_is_gone_ended(run: Bide, orders: bide.Queue) -> None:
    run("set", "orders", "--history", "7d")
    orders.put(1, id="a")
    orders.ack(orders.claim())
    gone = run("get", "orders", "a")
    assert gone.exit_code == 1
    assert "a was acked by" in gone.stderr
    assert "it never was, or it is gone" in run("get", "orders", "b").stderr


def test_result_prints_what_ack_was_given(run: Bide, orders: bide.Queue) -> None:
    run("set", "orders", "--result-ttl", "1h")
    orders.put(1, id="a")
    waiting = run("result", "orders", "a", "--wait", "1ms")
    assert (waiting.stdout, waiting.exit_code) == ("", 1)
    assert "a is ready; it has no result yet" in waiting.stderr
    id, token, *_ = run("claim", "orders").output.split("\t")
    bad = run("ack", "orders", id, token, "--result", "{")
    assert bad.exit_code == 2
    assert "result is not JSON" in bad.stderr
    assert run("ack", "orders", id, token, "--result", '{"total": 3}').exit_code == 0
    done = run("result", "orders", "a")
    assert (json.loads(done.output), done.exit_code) == ({"total": 3}, 0)
    assert "nothing is remembered of 'b'" in run("result", "orders", "b").stderr


def test_set_changes_limits(run: Bide, orders: bide.Queue) -> None:
    told = run("set", "orders", "--rate", "100/m", "--group-limit", "1").stdout.splitlines()
    assert told[3:] == ["limit\t0", "rate\t100/m", "group_limit\t1", "group_rate\t0"]
    found = json.loads(run("set", "orders", "--limit", "5", "--rate", "0", "--json").output)
    assert (found["limit"], found["rate"], found["group_limit"]) == (5, 0, 1)
    assert (orders.counts().limit, orders.counts().rate) == (5, 0)
    orders.put(1)
    counts = json.loads(run("counts", "orders", "--json").output)
    assert (counts["limit"], counts["group_limit"], "rate" in counts) == (5, 1, False)
    wrong = run("set", "orders", "--group-rate", "5 per s")
    assert wrong.exit_code == 2
    assert "--group-rate '5 per s' is not a valid rate; write '5/s'" in wrong.stderr


def test_a_number_that_is_none_is_told(run: Bide) -> None:
    for given, bounds in (
        (("set", "orders", "--limit"), "x>=0"),
        (("put", "orders", "1", "--priority"), "0<=x<=255"),
    ):
        for text, why in (
            ("x", "valid whole number."),
            ("1.5", "valid whole number."),
            ("-1", bounds),
        ):
            wrong = run(*given, text)
            assert wrong.exit_code == 2
            assert f"Invalid value for '{given[-1]}': " in wrong.stderr
            assert why in wrong.stderr


def test_set_needs_something_to_set(run: Bide) -> None:
    nothing = run("set", "orders")
    assert nothing.exit_code == 2
    assert (
        "nothing to set: give at least one setting, such as --keep, --history or --limit"
        in nothing.stderr
    )
    new = run("set", "odrers", "--keep", "1h")
    assert "odrers is new" in new.stderr
