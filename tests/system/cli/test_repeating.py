"""Messages that repeat: how a rule is given, what is done with them, and how they show.

The rules begin in 2096, so that no run of theirs falls due meanwhile.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import bide
from bide.cli import option
from bide.model.commands import Put
from bide.model.message import Item, Message
from bide.model.repeat import MISSED
from bide.testing.hooks import lane_of
from tests.system.cli.conftest import Terminal
from tests.system.cli.test_terminal import plain

Bide = Callable[..., Result]

START, START_MS = "2096-10-01T00:00Z", 3_999_888_000_000
WEEKLY = ("--cron", "0 9 * * MON", "--timezone", "Europe/Berlin")


def message(queue: bide.Queue, id: str = "a") -> Message:
    found = queue.get(id)
    assert found is not None
    return found


@pytest.fixture
def daily(orders: bide.Queue) -> bide.Queue:
    """Provide a queue with the message `a`, which repeats each day."""
    orders.put({"n": 1}, id="a", repeat=bide.Every("1d", start=START_MS / 1000, times=3))
    return orders


@pytest.fixture
def held_by(url: str) -> Iterator[bide.Queue]:
    """Provide a queue with the message `a`, a run of which web-1:99 holds."""
    with bide.Queue("orders", url, holder="web-1:99") as orders:
        orders.put(1, id="a", repeat=bide.Every("1d"), delay=0)
        assert len(orders.claim()) == 1
        yield orders


# Rules as options.


def test_put_with_a_cron_expression(run: Bide, orders: bide.Queue) -> None:
    bounds = (
        "--start",
        START,
        "--until",
        "2097-01-01T00:00Z",
        "--times",
        "5",
        "--missed",
        "skip",
        "--grace",
        "90s",
    )
    result = run("put", "orders", "1", "--id", "a", *WEEKLY, *bounds)
    assert (result.output, result.exit_code) == ("a\n", 0)
    expected = bide.Cron(
        "0 9 * * MON",
        "Europe/Berlin",
        start=START_MS / 1000,
        until=START_MS / 1000 + 92 * 86_400,
        times=5,
        missed="skip",
        grace="90s",
    )
    assert message(orders).repeat == expected
    assert f"{message(orders).due_at:%a %H:%M}" == "Mon 07:00"


def test_put_with_a_period_and_a_first_due_time(run: Bide, orders: bide.Queue) -> None:
    run("put", "orders", "1", "--id", "a", "--every", "90s", "--at", START)
    assert message(orders).repeat == bide.Every("1m30s")
    assert message(orders).due == START_MS


def test_each_line_may_repeat(run: Bide, orders: bide.Queue) -> None:
    assert run("put", "orders", "--lines", "--every", "1d", stdin="1\n2\n").exit_code == 0
    assert [found.repeat for found in orders.scan()] == [bide.Every("1d")] * 2


def test_every_way_to_miss_a_run_can_be_chosen() -> None:
    (missed,) = [
        parameter for parameter in _parameters_of(option.repeat) if parameter.name == "missed"
    ]
    assert tuple(missed.type.choices) == MISSED


def _parameters_of(decorator: Any) -> list[Any]:
    def command() -> None: ...

    parameters: list[Any] = decorator(command).__click_params__
    return parameters


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--cron", "0", "9", "*"], "'0' is not valid: it has 1 field, not 5: minute, "),
        (["--cron", "0 9 * *"], "write five in quotes, as in '0 9 * * MON-FRI'"),
        (["--cron", "0 9 * * FOO"], "'0 9 * * FOO' is not valid: bad day-of-week; write five fie"),
        ([*WEEKLY[:2], "--timezone", "Europe/Berln"], "did you mean 'Europe/Berlin'?"),
        ([*WEEKLY[:2], "--timezone", "berlin"], "did you mean 'Europe/Berlin'?"),
        ([*WEEKLY[:2], "--timezone", "Mars/Base"], "'Mars/Base' is not known here; write a name"),
        (["--every", "10ms"], "'10ms' must be 100 ms or longer"),
        (["--every", "daily"], "'daily' is not a valid duration; write '250ms', '30s'"),
        (["--every", "1d", *WEEKLY[:2]], "a message repeats by --cron or by --every; give one"),
        (
            ["--every", "1d", "--timezone", "UTC"],
            "--timezone goes with --cron or --window; --every",
        ),
        (["--times", "3"], "--times is a part of a rule, and a rule is given whole: with --cron "),
        (["--until", START], "--until is a part of a rule"),
        (["--every", "1d", "--until", "2020-01-01T00:00Z"], "has no time after"),
        (["--every", "1d", "--start", START, "--until", "2090-01-01T00:00Z"], "is before --start"),
        (["--every", "1d", "--times", "0"], "0 is not in the range"),
        (["--every", "1d", "--missed", "never"], "is not one of 'once', 'all', 'skip'"),
        (["--every", "1d", "--spread", "5m"], "--spread and --every cannot be used together"),
        ([*WEEKLY, "--latest", "1d"], "--latest and --cron cannot be used together"),
        (["--every", "1d", "--id", "x" * 500], "the id of a message that repeats may have "),
    ],
)
def test_a_wrong_rule_puts_nothing(
    run: Bide, orders: bide.Queue, options: list[str], error: str
) -> None:
    result = run("put", "orders", "1", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert error in result.stderr
    assert "repeat=" not in result.stderr
    assert list(orders.scan()) == []


def test_a_time_with_a_misspelt_zone_is_met_with_a_hint(run: Bide) -> None:
    result = run("put", "orders", "1", "--at", "2096-10-01 09:00 Europe/Berln")
    assert "'Europe/Berln' is not known here; did you mean 'Europe/Berlin'?" in result.stderr


def test_a_call_repeats(
    run: Bide, orders: bide.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import bide\napp = bide.App()\n@app.task(queue='orders')\ndef report(n: int): ...\n"
    (tmp_path / "repeating_shop.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run("call", "repeating_shop:report", "7", "--id", "a", *WEEKLY).exit_code == 0
    assert message(orders).repeat == bide.Cron("0 9 * * MON", "Europe/Berlin")
    assert message(orders).body == {"task": "report", "args": {"n": 7}}
    wrong = run("call", "repeating_shop:report", "7", "--missed", "all")
    assert "--missed is a part of a rule" in wrong.stderr
    sys.modules.pop("repeating_shop", None)


def test_edit_gives_another_rule_and_takes_it_away(run: Bide, daily: bide.Queue) -> None:
    result = run("edit", "orders", "a", "--every", "2d", "--start", START)
    assert (result.output, result.exit_code) == ("a\tedited\tdelayed\t\n", 0)
    assert message(daily).repeat == bide.Every("2d", start=START_MS / 1000)
    run("edit", "orders", "a", *WEEKLY, "--at", START)
    assert message(daily).repeat == bide.Cron("0 9 * * MON", "Europe/Berlin")
    assert message(daily).due == START_MS
    run("edit", "orders", "a", "--no-repeat")
    assert message(daily).repeat is None
    assert message(daily).due == START_MS
    both = run("edit", "orders", "a", "--no-repeat", "--every", "1d")
    assert "--cron or --every and --no-repeat cannot be used together" in both.stderr
    part = run("edit", "orders", "a", "--times", "5")
    assert (part.exit_code, "a rule is given whole" in part.stderr) == (2, True)


# What is done with them.


def test_hold_and_resume(run: Bide, daily: bide.Queue) -> None:
    result = run("hold", "orders", "a")
    assert (result.output, result.exit_code) == ("a\theld\tdelayed\t\n", 0)
    assert message(daily).held
    assert json.loads(run("hold", "orders", "a", "--json").output)["done"]
    result = run("resume", "orders", "a")
    assert (result.output, result.exit_code) == ("a\tresumed\tdelayed\t\n", 0)
    assert not message(daily).held
    assert message(daily).due == START_MS


def test_resume_without_an_id_is_about_the_queue(run: Bide, daily: bide.Queue) -> None:
    daily.pause()
    run("resume", "orders", "a")
    assert daily.counts().paused
    assert run("resume", "orders").output == "queue\torders\npaused\tfalse\n"
    assert not daily.counts().paused


def test_run_now(run: Bide, daily: bide.Queue) -> None:
    result = run("run-now", "orders", "a")
    assert (result.output, result.exit_code) == ("a\trun\tready\t\n", 0)
    [delivery] = daily.claim()
    delivery.ack()
    assert message(daily).due == START_MS


@pytest.mark.parametrize("command", ["hold", "resume", "run-now"])
def test_what_a_worker_holds_stays_as_it_is(run: Bide, held_by: bide.Queue, command: str) -> None:
    result = run(command, "orders", "a")
    assert result.exit_code == 1
    assert result.output.startswith("a\tno\tleased\tweb-1:99 holds it until ")
    assert not message(held_by).held


@pytest.mark.parametrize(
    "arguments",
    [
        ["hold", "orders", "a"],
        ["resume", "orders", "a"],
        ["run-now", "orders", "a"],
        ["backfill", "orders", "a", "--after", START, "--before", "2096-10-02T00:00Z"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_does_not_repeat_or_is_not_there(
    run: Bide, orders: bide.Queue, url: str, arguments: list[str]
) -> None:
    orders.put(1, id="a", at=4e9)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    hint = "error: 'a' does not repeat; to make it repeat: bide edit orders a --every 1h"
    assert result.stderr.splitlines()[0] == hint
    orders.cancel("a")
    result = run(*arguments)
    assert result.exit_code == 1
    assert "no such message" in result.output or "a is not in orders" in result.stderr
    result = run(arguments[0], "ordrs", *arguments[2:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: there is no queue 'ordrs' in {url}; there are: orders\n"


SPAN = ("--after", START, "--before", "2096-10-03T00:00Z")
PAST_SPAN = ("--after", "2020-10-02T00:00Z", "--before", "2020-10-04T00:00Z")


def test_backfill(run: Bide, daily: bide.Queue) -> None:
    daily.edit("a", repeat=bide.Every("1d"))
    first, second = "a@2020-10-02T00:00:00.000Z", "a@2020-10-03T00:00:00.000Z"
    result = run("backfill", "orders", "a", *PAST_SPAN)
    assert result.exit_code == 0
    assert [line.split("\t") for line in result.output.splitlines()] == [
        [first, "stored", "ready", "2020-10-02T00:00:00.000Z"],
        [second, "stored", "ready", "2020-10-03T00:00:00.000Z"],
    ]
    assert (message(daily, second).body, message(daily, second).rule) == ({"n": 1}, None)
    daily.cancel(first)
    result = run("backfill", "orders", "a", *PAST_SPAN)
    assert [line.split("\t")[1] for line in result.output.splitlines()] == ["stored", "kept"]
    assert result.exit_code == 0
    lines = run("backfill", "orders", "a", *PAST_SPAN, "--json").output.splitlines()
    assert [json.loads(line)["done"] for line in lines] == [False, False]


def test_backfill_of_nothing(run: Bide, daily: bide.Queue) -> None:
    past = ("--after", "2020-01-01T00:00Z", "--before", "2021-01-01T00:00Z")
    result = run("backfill", "orders", "a", *past)
    assert (result.output, result.exit_code) == ("", 1)
    for half in (SPAN[:2], SPAN[2:]):
        assert "backfill needs a span" in run("backfill", "orders", "a", *half).stderr
    assert run("backfill", "orders", "a", *SPAN).exit_code == 1  # the message delivers these itself
    daily.edit("a", repeat=bide.Every("1s"))
    assert "more than 10,000 runs" in run("backfill", "orders", "a", *past).stderr


def test_backfill_into_a_closed_group(run: Bide, held_by: bide.Queue) -> None:
    held_by.put(1, id="b", group="g", repeat=bide.Every("1d"), delay=0)
    assert len(held_by.claim()) == 1
    held_by.close_group("g")
    result = run("backfill", "orders", "b", *PAST_SPAN)
    assert result.exit_code == 1
    assert [line.split("\t")[1] for line in result.output.splitlines()] == ["no", "no"]


def test_a_cancel_while_a_worker_holds_it_ends_it(run: Bide, held_by: bide.Queue) -> None:
    result = run("cancel", "orders", "a")
    assert result.exit_code == 1
    assert re.fullmatch(
        "a\tending\tleased\tweb-1:99 holds it until .*; that run is its last one, it repeats no "
        "longer\n",
        result.output,
    )
    assert not message(held_by).repeats
    assert run("cancel", "orders", "a").output.startswith("a\tno\tleased\tweb-1:99 holds it until")


def test_a_cancel_as_json_tells_that_it_is_ending(run: Bide, held_by: bide.Queue) -> None:
    outcome = json.loads(run("cancel", "orders", "a", "--json").output)
    assert (outcome["done"], outcome["state"], outcome["holder"]) == (False, "ending", "web-1:99")


# How they show.


def test_json_has_rule_and_run(run: Bide, daily: bide.Queue) -> None:
    shown = json.loads(run("get", "orders", "a", "--json").output)
    assert shown["rule"] == {"every": "1d", "start": "2096-10-01T00:00:00.000Z", "times": 3}
    assert shown["rule_in_words"] == "every 1d, from 2096-10-01 00:00:00 UTC, 3 times"
    assert (shown["run_at"], shown["runs_left"], shown["held"]) == (START_MS, 3, False)
    assert "run" not in shown
    daily.hold("a")
    daily.put(1, id="b", delay="1h")
    held, plain_message = (
        json.loads(line) for line in run("get", "orders", "a", "b", "--json").output.splitlines()
    )
    assert (held["run_at"], held["held"]) == (START_MS, True)
    assert not {"rule", "rule_in_words", "run_at", "held", "runs_left"} & plain_message.keys()
    assert json.loads(run("peek", "orders", "--json").output.splitlines()[-1]) == held


def test_scan_lists_those_that_repeat(run: Bide, daily: bide.Queue) -> None:
    daily.put("plain", id="b", at=4e9)
    daily.put(2, id="c", repeat=bide.Every("1d", start=START_MS / 1000), group="g")
    daily.hold("c")
    lines = run("scan", "orders", "--repeats").output.splitlines()
    start, first = "from 2096-10-01 00:00:00 UTC", "2096-10-01T00:00:00.000Z"
    assert sorted(line.split("\t") for line in lines) == [
        ["a", "delayed", first, first, "", f"every 1d, {start}, 3 times", "", '{"n":1}'],
        ["c", "delayed", "2100-01-01T00:00:00.000Z", first, "held", f"every 1d, {start}", "g", "2"],
    ]
    assert len(run("scan", "orders", "--repeats", "--limit", "1").output.splitlines()) == 1
    assert run("scan", "orders", "--repeats", "--state", "dead").output == ""
    lines = run("scan", "orders").output.splitlines()
    assert sorted(line.count("\t") for line in lines) == [6, 6, 6]


def test_search_finds_those_that_repeat_in_all_queues(
    run: Bide, daily: bide.Queue, url: str
) -> None:
    daily.put("plain", id="b", at=4e9)
    with bide.Queue("mail", url) as mail:
        mail.put(1, id="m", repeat=bide.Every("1d"))
    lines = run("search", "--repeats").output.splitlines()
    assert sorted(line.split("\t")[:2] for line in lines) == [["mail", "m"], ["orders", "a"]]
    assert run("search", "--repeats", "--id", "b").exit_code == 1


def test_a_rule_that_cannot_be_read_here_is_shown_as_it_is(run: Bide, orders: bide.Queue) -> None:
    later = '{"moon":"full"}'
    lane_of(orders).call(Put("orders", [Item("a", b"1", at=START_MS, rule=later, run="2")]))
    shown = json.loads(run("get", "orders", "a", "--json").output)
    assert (shown["rule"], shown["rule_in_words"]) == (later, later)
    assert "run_at" not in shown
    assert run("scan", "orders", "--repeats").output.split("\t")[3:6] == ["", "", later]
    told = run("explain", "orders", "a").output
    assert 'it repeats by a rule that cannot be read here: \'{"moon"' in told


@pytest.mark.full
@pytest.mark.process
def test_on_a_terminal(terminal: Terminal, daily: bide.Queue) -> None:
    daily.put("plain", id="b", delay="1h")
    screen = plain(terminal("peek", "orders", COLUMNS="160")[0])
    assert re.search(
        r"a +delayed +2096-10-0\d \d\d:\d\d +in \d+y +every 1d, from .*, 3 times", screen
    )
    sheet = plain(terminal("get", "orders", "a")[0])
    assert re.search(r"repeats  every 1d, from 2096-10-01 00:00:00 UTC, 3 times", sheet)
    assert re.search(r"run of  2096-", sheet)
    assert re.search(r"next run  2096-", sheet)
    assert re.search(r"runs left  3", sheet)
    screen, code = terminal("hold", "orders", "a")
    expected = "✓ a held: no run is due until 'bide resume orders a'\n"
    assert (plain(screen), code) == (expected, 0)
    screen = plain(terminal("scan", "orders", "--repeats", COLUMNS="160")[0])
    assert re.search(r"a +held +every 1d, from", screen)
    assert "plain" not in screen
    sheet = plain(terminal("get", "orders", "a")[0])
    assert re.search(r"held  until it is resumed", sheet)
    assert "2100" not in sheet
    assert re.match(
        "✓ a resumed: it is delayed, due 2096-", plain(terminal("resume", "orders", "a")[0])
    )
    assert plain(terminal("run-now", "orders", "a")[0]) == "✓ a run: it is due now\n"
    in_past = ("backfill", "orders", "a", *PAST_SPAN)
    assert "no run of a is in that span" in plain(terminal(*in_past)[0])
    daily.edit("a", repeat=bide.Every("1d"))
    assert plain(terminal(*in_past)[0]) == "✓ put 2 runs of a\n"
    assert plain(terminal(*in_past)[0]) == "✓ put 0 runs of a; 2 were there already\n"


@pytest.mark.process
def test_an_end_on_a_terminal(terminal: Terminal, held_by: bide.Queue) -> None:
    held_by.put(1, id="b", group="g", repeat=bide.Every("1d"), delay=0)
    assert len(held_by.claim()) == 1
    held_by.close_group("g")
    screen, code = terminal("backfill", "orders", "b", *PAST_SPAN)
    assert code == 1
    assert plain(screen).startswith(
        "nothing was put: the group of b@2020-10-02T00:00:00.000Z is cl"
    )
    screen, code = terminal("cancel", "orders", "a")
    assert code == 1
    assert plain(screen).startswith("! a is ending: web-1:99 holds it until ")
