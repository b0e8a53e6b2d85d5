"""What people see: tables, colours, questions, charts, bars."""

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

import bide
from bide.cli.output import Bar, escape
from bide.cli.times import iso, local, relative, rounded

Terminal = Callable[..., tuple[str, int]]


def plain(screen: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen).replace("\r\n", "\n")


@pytest.mark.full
@pytest.mark.process
def test_a_table_of_messages(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put({"order": 42, "note": "[bold]not markup[/bold]"}, id="order-42", delay=1799.9)
    screen, code = terminal("peek", "orders")
    assert code == 0
    assert "\x1b[36mdelayed" in screen
    assert "in 30m" in screen
    assert "[bold]not markup[/bold]" in plain(screen)
    assert "\x1b[3" not in terminal("peek", "orders", NO_COLOR="1")[0]
    assert "\x1b[" in terminal("peek", "nosuch")[0]
    assert terminal("peek", "nosuch", NO_COLOR="1")[0].startswith("error: there is no queue")
    assert terminal("peek", "nosuch", TERM="dumb")[0].startswith("error: there is no queue")


@pytest.mark.process
def test_a_long_body_leaves_the_other_columns_whole(terminal: Terminal, orders: bide.Queue) -> None:
    id = "x" * 26
    orders.put("y" * 500, id=id, at=4_000_000_000, priority=7)
    screen, _ = terminal("peek", "orders", COLUMNS="80")
    row = next(line for line in plain(screen).splitlines() if "xxx" in line)
    assert "delayed" in row
    assert "2096-10-02" in row
    assert row.rstrip().endswith("…")
    assert all(len(line) <= 80 for line in plain(screen).splitlines())


@pytest.mark.process
def test_a_narrow_terminal_has_ids_states_and_moments_whole(
    terminal: Terminal, orders: bide.Queue
) -> None:
    told = orders.put("y" * 500, at=4_000_000_000, priority=7, group="customer:4711")
    screen = plain(terminal("peek", "orders", COLUMNS="60")[0])
    assert re.search(rf"{told.id}  delayed  2096-10-0\d \d\d:\d\d *\n", screen)
    assert "no room for prio, group, body; --json shows all" in screen
    assert all(len(line) <= 60 for line in screen.splitlines())
    screen = plain(terminal("peek", "orders", COLUMNS="140")[0])
    assert re.search(r"in \d\dy +7  customer:4711  \"yyyy+…", screen)
    assert "no room" not in screen


@pytest.mark.process
def test_a_search_by_error_shows_errors_on_a_usual_terminal(
    terminal: Terminal, orders: bide.Queue
) -> None:
    orders.put("y" * 500, id="order-7", group="customer:ann")
    orders.claim()[0].bury("ConnectionError: bank: gateway timeout, for the third time")
    screen = plain(terminal("search", "--error", "bank", COLUMNS="80")[0])
    assert re.search(r"order-7 .*  Connect\w*…", screen)
    assert all(len(line) <= 80 for line in screen.splitlines())


@pytest.mark.full
@pytest.mark.process
def test_a_sentence_for_what_was_put_and_found(terminal: Terminal, orders: bide.Queue) -> None:
    screen, code = terminal("put", "orders", "1", "--id", "a", "--delay", "1h")
    assert code == 0
    assert re.fullmatch(r"✓ a is delayed, due [-:0-9 ]+ \(in 1h\)\n", plain(screen))
    screen, _ = terminal("put", "orders", "1", "--id", "a")
    assert plain(screen).startswith("= kept the existing message: a is delayed")
    here = terminal("put", "orders", "1", "--id", "a", TZ="Asia/Kolkata")[0]
    told = orders.get("a")
    assert told is not None
    due = datetime.fromtimestamp(told.due / 1000, ZoneInfo("Asia/Kolkata"))
    assert f"a is delayed, due {due:%H:%M:%S}" in here or f"due {due:%Y-%m-%d %H:%M}" in here
    assert "UTC" not in here
    screen, code = terminal("cancel", "orders", "b")
    assert (code, plain(screen).startswith("✗ b not cancelled: there is no such message")) == (
        1,
        True,
    )


@pytest.mark.full
@pytest.mark.process
def test_tokens_are_a_table(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1)
    assert "no tokens in sqlite:" in terminal("token", "list")[0]
    made = ("--namespace", "shop", "--scope", "produce", "--scope", "read")
    terminal("token", "create", *made, "--expires", "90d", "--name", "the shop")
    terminal("token", "create", "--scope", "admin", "--expires", "never")
    screen = plain(terminal("token", "list", COLUMNS="140")[0])
    assert re.search(r"id +namespace +rights +expires +used +queues +created +name", screen)
    assert re.search(r"[0-9a-f]{12}  shop +put,change,read,bodies +.* in 90d .* the shop", screen)
    assert re.search(r"whole store +admin +.* for ever", screen)
    narrow = plain(terminal("token", "list", COLUMNS="60")[0])
    assert re.search(r"[0-9a-f]{12}  shop +put,change", narrow)
    assert all(len(line) <= 60 for line in narrow.splitlines())


@pytest.mark.process
def test_the_forecast_is_a_chart(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put_many(range(40), delay="5m")
    orders.put_many(range(20), delay="20m")
    lines = [line for line in plain(terminal("forecast", "orders")[0]).splitlines() if "█" in line]
    assert [line.partition("█")[0].split()[-1] for line in lines] == ["40", "20"]
    assert all(len(line) <= 100 for line in lines)
    long, short = (line.count("█") for line in lines)
    assert long > 50
    assert abs(long - 2 * short) <= 2


@pytest.mark.process
def test_the_audit_adds_up_and_says_so(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put_many(range(1_234))
    orders.ack(orders.claim(34))
    screen = plain(terminal("audit", "orders")[0])
    assert "✓ orders balances: 1,234 messages put = 34 acked + 1,200 ready" in screen


@pytest.mark.process
@pytest.mark.parametrize(("answer", "left", "code"), [("y\n", 0, 0), ("n\n", 3, 1)])
def test_purge_asks(
    terminal: Terminal, orders: bide.Queue, answer: str, left: int, code: int
) -> None:
    orders.put_many(range(3), delay=60)
    screen, ended = terminal("purge", "orders", "--state", "delayed", typed=answer)
    assert "Delete 3 delayed messages of orders permanently?" in screen
    assert ended == code
    assert orders.counts().sizes.delayed == left


@pytest.mark.process
@pytest.mark.parametrize("line", ["purge orders --state dead", "dead purge orders --error Timeout"])
def test_purge_does_not_ask_about_nothing(
    terminal: Terminal, orders: bide.Queue, line: str
) -> None:
    orders.put(1)
    screen = plain(terminal(*line.split())[0])
    assert ("= 0 dead " in screen, "permanently" in screen) == (True, False)


@pytest.mark.process
def test_one_end_of_input_ends_a_body_that_is_typed(terminal: Terminal, orders: bide.Queue) -> None:
    _, code = terminal("put", "orders", "-", typed='{"a": 1}\n\x04')
    assert code == 0
    assert [message.body for message in orders.peek()] == [{"a": 1}]


@pytest.mark.process
def test_a_question_without_an_answer_ends_its_line(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put_many(range(3), delay=60)
    screen, ended = terminal("purge", "orders", "--state", "delayed", typed="\x04")
    assert screen.endswith("\r\n")
    assert ended == 130
    assert orders.counts().sizes.delayed == 3


@pytest.mark.full
@pytest.mark.process
def test_claim_says_how_to_ack(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    screen = plain(terminal("claim", "orders")[0])
    found = re.search(r"then bide ack orders a (\d+)", screen)
    assert found is not None
    assert terminal("ack", "orders", "a", found[1])[1] == 0
    orders.put(2, id="it's a; b")
    screen = plain(terminal("claim", "orders")[0])
    found = re.search(r"then bide (ack .* \d+)", screen)
    assert found is not None
    assert terminal(*shlex.split(found[1]))[1] == 0


@pytest.mark.full
@pytest.mark.process
def test_the_other_screens(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1, id="a", headers={"k": "v"}, expires=60)
    orders.claim()[0].bury("a bad\nday")
    orders.put(2, id="b")
    for arguments, words in (
        (["counts", "orders"], ["dead", "1", "the oldest waiting message"]),
        (["queues"], ["orders", "late by"]),
        (["dead", "orders"], ["a bad", " 1  a bad"]),
        (["dead", "show", "orders", "a"], ["k: v", "day", "dead since", "expires"]),
        (["get", "orders", "b"], ["ready", "0 of 10"]),
        (["scan", "orders", "--limit", "1"], ["a"]),
        (["audit"], ["orders balances"]),
        (["revive", "orders", "--all"], ["1 dead letter of orders revived"]),
        (["pause", "orders"], ["orders is paused"]),
        (["counts", "orders"], ["paused: claims get nothing"]),
    ):
        screen, code = terminal(*arguments)
        assert code == 0, screen
        for word in words:
            assert word in plain(screen)


class Screen(io.StringIO):
    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with Bar("counting sheep", 3) as bar:
        assert "counting sheep" not in screen.getvalue()
        assert list(bar.over("abc")) == ["a", "b", "c"]
        if bar.progress is not None:
            bar.progress.refresh()  # as it does after a second
        assert ("3/3" in screen.getvalue()) is terminal


def test_a_bar_can_learn_its_total_later(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with Bar("counting sheep") as bar:
        assert bar.progress is not None
        for total in ("?", "3"):
            bar.advance()
            bar.progress.refresh()
            assert f"/{total}" in screen.getvalue()
            bar.expect(3)
    assert "2/3" in screen.getvalue()


def test_times_read_well() -> None:
    assert [rounded(ms) for ms in (3, 4_234, 179_000, 1_799_900, 7_200_000, 90_061_000)] == [
        "3ms",
        "4.2s",
        "2m59s",
        "30m",
        "2h",
        "1d1h",
    ]
    assert [rounded(days * 86_400_000) for days in (12.2, 1461)] == ["12d", "4y"]
    assert (relative(0, 0), relative(5_000, 0), relative(0, 60_000)) == ("now", "in 5.0s", "1m ago")
    assert iso(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert len(local(0, 0)) == 8
    assert escape("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
    assert escape("a\u202eb\u200fc") == "a\\u202eb\\u200fc"
    assert escape("\u3000日本\xa0語") == "\u3000日本\xa0語"


@pytest.mark.process
def test_foreign_text_cannot_speak_to_the_terminal(terminal: Terminal, url: str) -> None:
    harmful = "x\u202ey\u200fz"
    with bide.Queue("orders", url, holder="web\u202e1") as queue:
        queue.put(harmful, id=f"id-{harmful}", group=harmful, headers={"k": f"\x1b[2J{harmful}"})
        queue.claim()[0].retry(60, f"\x1b]0;title\x07{harmful}")
        queue.put(1, id=f"dead-{harmful}")
        queue.claim(lease="1h")[0].bury(f"\x1b[2J{harmful}")
    for arguments in (
        ["get", "orders", f"id-{harmful}"],
        ["peek", "orders"],
        ["dead", "orders"],
        ["dead", "show", "orders", f"dead-{harmful}"],
        ["cancel", "orders", f"gone-{harmful}"],
        ["cancel", "orders", f"id-{harmful}"],
        ["counts", f"no-{harmful}"],
    ):
        screen, _ = terminal(*arguments)
        assert "\u202e" not in screen
        assert "\u200f" not in screen
        assert "\x1b[2J" not in screen
        assert "\x1b]0" not in screen
        assert "\\u202e" in screen


@pytest.mark.process
def test_a_dry_run_shows_what_a_reschedule_moves(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1, id="daily", group="g", repeat=bide.Every("1d"))
    orders.hold("daily")
    orders.put(1, id="once", group="g", delay="1h")
    screen, _ = terminal("reschedule", "orders", "--group", "g", "--delay", "2h", "--dry-run")
    assert "1 message would be rescheduled" in plain(screen)
    assert ("once" in screen, "daily" in screen) == (True, False)


@pytest.mark.process
def test_counts_agree_with_their_noun(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1, delay="5m")
    assert "1 message waits" in plain(terminal("forecast", "orders")[0])
    orders.put(1, delay="5m")
    assert "2 messages wait" in plain(terminal("forecast", "orders")[0])


@pytest.mark.process
def test_a_claim_from_a_paused_queue_says_why_it_gets_nothing(
    terminal: Terminal, orders: bide.Queue
) -> None:
    orders.put(1)
    orders.pause()
    screen, code = terminal("claim", "orders")
    assert (code, plain(screen)) == (
        1,
        "orders is paused: claims get nothing until 'bide resume orders'\n",
    )


def test_messages_are_set_apart(terminal: Terminal, orders: bide.Queue) -> None:
    for id in ("a", "b"):
        orders.put(1, id=id, delay=60)
    lines = [line.strip() for line in plain(terminal("get", "orders", "a", "b")[0]).splitlines()]
    assert lines.index("") == lines.index("id  b") - 1


STEERS = "\x9b31m\x1b[2J\u202eevil\u2066\U000e0001"
"""Colours, clears the screen, turns the direction, and shows nothing."""


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        "result orders done",
        "export orders",
        "get orders kept",
        "get orders kept --json",
        "get orders kept --body",
        "get orders raw --body",
        "history orders done",
        "scan orders",
        "scan orders --json",
        "search --body evil --json",
        "claim orders --body --ack",
    ],
)
def test_what_others_wrote_steers_no_terminal(
    terminal: Terminal, orders: bide.Queue, command: str
) -> None:
    orders.configure(history="1d", result_ttl="1d")
    orders.put(STEERS, id="done")
    (delivery,) = orders.claim(1)
    delivery.ack(result=STEERS)
    orders.put(STEERS, id="kept", delay="1h", headers={"h": STEERS.replace("\x1b", "")})
    orders.put(STEERS.encode(), id="raw", delay="1h")
    orders.put(STEERS, id="due")
    screen, code = terminal(*command.split(), NO_COLOR="1")
    assert code == 0
    assert "evil" in screen or command.startswith("history")
    assert not set("\x9b\u202e\u2066\U000e0001") & set(screen)
    assert "\x1b[2J" not in screen


@pytest.mark.process
def test_json_on_a_terminal_is_the_same_value(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put({"note": STEERS}, id="kept", delay="1h")
    screen, _ = terminal("get", "orders", "kept", "--body", NO_COLOR="1")
    assert json.loads(plain(screen)) == {"note": STEERS}
