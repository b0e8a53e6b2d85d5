"""`bide ended`, and what lists of acked messages say where none are kept."""

import json
from datetime import UTC, datetime

import bide
from bide.testing.clock import FakeClock
from tests.start import START
from tests.system.cli.conftest import Bide


def end_some(url: str) -> None:
    """Let one message be acked, one expire, and one die, a minute after each other."""
    clock = FakeClock(START)
    with bide.Queue("orders", url, clock=clock, keep="7d") as orders:
        for id, options in (("a", {}), ("b", {"expires": 1}), ("c", {})):
            orders.put(1, id=id, group="g", **options)  # type: ignore[arg-type]
            if id == "b":
                clock.advance(2)
            for delivery in orders.claim():
                if id == "a":
                    delivery.ack()
                else:
                    delivery.bury("ValueError: no\nTraceback")
            clock.advance(60)


def rows(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.splitlines()]


def test_what_has_ended_is_listed_by_time_and_outcome(run: Bide, url: str) -> None:
    end_some(url)
    listed = rows(run("ended", "orders").stdout)
    assert [(row[0], row[1]) for row in listed] == [("a", "acked"), ("b", "expired"), ("c", "dead")]
    assert [row[-1] for row in listed] == ["", "", "ValueError: no"]
    times = [datetime.fromisoformat(row[2]) for row in listed]
    assert times == sorted(times)
    assert times[0] == datetime.fromtimestamp(START / 1000, UTC)
    assert [row[0] for row in rows(run("ended", "orders", "--how", "dead").stdout)] == ["c"]
    second = listed[1][2]
    assert [row[0] for row in rows(run("ended", "orders", "--after", second).stdout)] == ["b", "c"]
    assert [row[0] for row in rows(run("ended", "orders", "--before", second).stdout)] == ["a"]
    facts = json.loads(run("ended", "orders", "--limit", "1", "--json").stdout)
    assert (facts["id"], facts["state"]) == ("a", "acked")
    assert "ended" in facts
    assert "keeps no" not in run("ended", "orders").stderr


def test_a_queue_that_keeps_nothing_says_so(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    orders.claim()[0].ack()
    assert run("ended", "orders", "--how", "dead").stderr == ""
    cancelled = run("ended", "orders", "--how", "cancelled")
    assert cancelled.stdout == ""
    assert cancelled.stderr.startswith("orders keeps no cancelled messages; 'bide set orders --hi")
    for arguments in (["ended", "orders"], ["scan", "orders", "--state", "acked"]):
        result = run(*arguments)
        assert (result.stdout, result.exit_code) == ("", 0)
        assert result.stderr.startswith("orders keeps no acked messages ('bide set orders --keep")
        assert "'bide set orders --history 7d' remembers" in result.stderr
    orders.configure(history="7d")
    assert run("ended", "orders", "--how", "acked").stderr == ""
    scan = run("scan", "orders", "--state", "acked")
    assert "'bide ended orders --how acked' lists those that it remembers" in scan.stderr
    assert run("scan", "orders", "--state", "dead").stderr == ""
    orders.configure(keep="1d")
    assert run("scan", "orders", "--state", "acked").stderr == ""


def test_a_queue_with_a_history_lists_all_that_has_ended(run: Bide, url: str) -> None:
    clock = FakeClock(START)
    with bide.Queue("orders", url, clock=clock, history="3650d", actor="ann") as orders:
        for id in ("a", "b", "c", "d"):
            orders.put(1, id=id)
            if id in ("a", "c"):
                [delivery] = orders.claim()
                delivery.ack() if id == "a" else delivery.bury("ValueError: no\nTraceback")
            elif id == "b":
                orders.cancel(id)
            else:
                orders.purge(state="ready")
            clock.advance(60)
    listed = rows(run("ended", "orders").stdout)
    hows = [("a", "acked"), ("b", "cancelled"), ("c", "dead"), ("d", "purged")]
    assert [(row[0], row[1]) for row in listed] == hows
    assert [row[4] for row in listed] == ["1", "0", "1", "0"]
    assert [row[6] for row in listed][1] == "ann"
    assert [row[7] for row in listed] == ["", "", "ValueError: no", ""]
    times = [datetime.fromisoformat(row[2]) for row in listed]
    assert times[0] == datetime.fromtimestamp(START / 1000, UTC)
    for id, how in hows:
        assert [row[0] for row in rows(run("ended", "orders", "--how", how).stdout)] == [id]
    bounds = ("--after", listed[1][2], "--before", listed[3][2])
    assert [row[0] for row in rows(run("ended", "orders", *bounds).stdout)] == ["b", "c"]
    limited = run("ended", "orders", "--limit", "1", "--json").stdout
    facts = json.loads(limited)
    assert (facts["id"], facts["how"], facts["moment"]) == ("a", "acked", START)
    assert [attempt["outcome"] for attempt in facts["attempts"]] == ["acked"]
    nothing = run("ended", "orders", "--before", listed[0][2])
    assert (nothing.stdout, nothing.stderr, nothing.exit_code) == ("", "", 0)
