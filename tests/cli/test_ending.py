"""`bide history`, `bide result` and `bide set`; what `bide get` says of a message that is gone."""

import json
from collections.abc import Callable

from click.testing import Result

import bide

Bide = Callable[..., Result]


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
    assert "nothing is remembered of b in orders" in nothing.stderr


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
    assert "set needs what to set, such as --keep, --history or --limit" in nothing.stderr
    new = run("set", "odrers", "--keep", "1h")
    assert "odrers is new" in new.stderr
