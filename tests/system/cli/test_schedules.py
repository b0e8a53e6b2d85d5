"""`bide schedules`."""

import json
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import bide
from bide.model.time_rule import time_rule_of
from tests.system.cli.test_sources import work

Bide = Callable[..., Result]
Shell = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]

APP = """
import bide

app = bide.App()


@app.schedule("reports", cron="0 9 * * MON-FRI", timezone="Asia/Shanghai", missed="skip")
def report(tick: bide.Tick) -> None: ...


@app.schedule("sweeps", every="{every}")
def sweep(tick: bide.Tick) -> None:
    raise OSError("no broom")
"""


def made(url: str, every: str = "1h30m") -> bide.App:
    """Make the same app as above, but in this process."""
    names: dict[str, Any] = {}
    exec(APP.format(every=every).replace("bide.App()", f"bide.App({url!r})"), names)
    app = names["app"]
    assert isinstance(app, bide.App)
    return app


def test_what_is_in_the_store(run: Bide, url: str) -> None:
    work(made(url), "reports", put=1)
    work(made(url), "sweeps", put=1)
    lines = [json.loads(line) for line in run("schedules", "--json", "-n", "5").output.splitlines()]
    reports, sweeps = sorted(lines, key=lambda one: str(one["queue"]))
    ticks = reports.pop("ticks")
    assert reports == {
        "queue": "reports",
        "id": "schedule",
        "when": "0 9 * * MON-FRI",
        "timezone": "Asia/Shanghai",
        "missed": "skip",
        "state": "delayed",
        "held": False,
        "running": 0,
        "retrying": 0,
        "dead": 0,
    }
    assert len(ticks) == 5
    assert time.time() * 1000 < ticks[0] < ticks[1]
    assert [moment % 5_400_000 for moment in sweeps["ticks"]] == [0] * 5
    line = run("schedules").output.splitlines()[0].split("\t")
    rule = ["0 9 * * MON-FRI", "Asia/Shanghai"]
    assert line[:9] == ["reports", "schedule", *rule, "delayed", "0", "0", "0", ""]
    assert len(line) == 12
    first = datetime.fromisoformat(line[9])
    assert f"{first:%H:%M %z}" == "09:00 +0800"
    assert first.timestamp() * 1000 == ticks[0]


def test_what_went_wrong(run: Bide, url: str, terminal: Terminal) -> None:
    work(made(url, "200ms"), "sweeps", retried=1)
    sweeps = next(
        one
        for one in map(json.loads, run("schedules", "--json").output.splitlines())
        if one["queue"] == "sweeps"
    )
    assert sweeps["retrying"] == 1
    assert sweeps["error"].startswith("OSError: no broom\nTraceback")
    seen, code = terminal("schedules", COLUMNS="180")
    assert code == 0
    seen = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert re.search(r"every 200ms .*\n +UTC ", seen)
    assert "OSError: no broom" in seen
    assert re.search(r"0 9 \* \* MON-FRI .*\n +Asia/Shanghai ", seen)
    assert "09:00:00 +0800" in seen


def test_an_app_before_any_worker_has_run(
    url: str, tmp_path: Path, shell: Shell, terminal: Terminal
) -> None:
    (tmp_path / "shop.py").write_text(APP.format(every="15m"))
    done = shell("bide schedules shop:app --json -n 2")
    reports, sweeps = (json.loads(line) for line in done.stdout.splitlines())
    assert (reports["missed"], sweeps["missed"]) == ("skip", "once")
    assert "state" not in reports
    assert len(reports["ticks"]) == 2
    assert sweeps["ticks"][1] - sweeps["ticks"][0] == 900_000
    assert not (tmp_path / "test.db").exists()
    assert "no worker has run it yet" in terminal("schedules", "shop:app", COLUMNS="100")[0]
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", terminal("schedules", "shop:app", COLUMNS="60")[0])
    assert re.search(r"sweeps +\w{3} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+]\d{4} +no worker", narrow)


def test_an_app_whose_schedule_was_changed(url: str, tmp_path: Path, shell: Shell) -> None:
    work(made(url), "sweeps", put=1)
    (tmp_path / "shop.py").write_text(APP.format(every="15m"))
    done = shell("bide schedules shop:app --json")
    sweeps = json.loads(done.stdout.splitlines()[1])
    assert (sweeps["when"], "state" in sweeps) == ("every 15m", False)
    assert sweeps["ticks"][0] % 900_000 == 0


def test_another_store_may_be_named(url: str, tmp_path: Path, shell: Shell) -> None:
    work(made(url), "sweeps", put=1)
    (tmp_path / "shop.py").write_text(APP.format(every="90m").replace("App()", "App('memory://')"))
    elsewhere = json.loads(shell("bide schedules shop:app --json").stdout.splitlines()[1])
    assert "state" not in elsewhere
    done = shell(f"bide schedules shop:app --json --url {url}")
    assert json.loads(done.stdout.splitlines()[1])["state"] in ("delayed", "ready")


def test_a_schedule_that_cannot_be_read_here(
    run: Bide, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are listed all the same."""
    work(made(url), "sweeps", put=1)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    time_rule_of.cache_clear()
    done = run("schedules")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["sweeps"]
    hint = "cron= needs the package cronsim: pip install 'bide[schedules]'"
    assert f"reports: schedule: {hint}" in done.stderr


def test_queues_that_are_no_schedules(run: Bide, orders: bide.Queue, terminal: Terminal) -> None:
    orders.put({"due": 1}, id="2026-03-02T09:15:00.000Z", delay=60)
    assert (run("schedules").output, run("schedules").exit_code) == ("", 0)
    assert "no schedules in sqlite:///" in terminal("schedules")[0]


def test_messages_that_repeat(run: Bide, url: str, terminal: Terminal) -> None:
    work(made(url), "sweeps", put=1)
    with bide.Queue("reminders", url) as reminders:
        rule = bide.Cron("0 9 * * MON", "Europe/Berlin", times=2)
        reminders.put("x", id="ann/weekly", repeat=rule)
        reminders.put("x", id="bob/daily", repeat=bide.Every("1d"))
        reminders.put("x", id="once", delay="1h")
        reminders.hold("bob/daily")
    lines = [json.loads(line) for line in run("schedules", "--json", "-n", "5").output.splitlines()]
    assert [(line["queue"], line["id"], line["held"], len(line["ticks"])) for line in lines] == [
        ("reminders", "ann/weekly", False, 2),
        ("reminders", "bob/daily", True, 0),
        ("reports", "schedule", False, 5),
        ("sweeps", "schedule", False, 5),
    ]
    assert "dead" not in lines[0]
    held = run("schedules").output.splitlines()[1].split("\t")
    assert held == ["reminders", "bob/daily", "every 1d", "UTC", "held", "0", "0", "", ""]
    seen = re.sub(r"\x1b\[[0-9;]*m", "", terminal("schedules", COLUMNS="180")[0])
    assert re.search(r"reminders .*\n *ann/weekly .*09:00:00 [+]0[12]00", seen)
    assert re.search(r"reminders +every 1d +held.*\n *bob/daily +UTC", seen)


def test_the_last_runs_where_history_is_kept(run: Bide, url: str, terminal: Terminal) -> None:
    app = made(url, "100ms")
    with bide.Queue("sweeps", url) as sweeps:
        sweeps.configure(history="1h")
    with bide.Queue("reminders", url, history="1h") as reminders:
        reminders.put("x", id="ann", repeat=bide.Every("100ms", missed="all"), attempts=1)
        for number in range(12):
            (delivery,) = reminders.claim(wait=60)
            if number == 11:
                delivery.bury("no")
            else:
                delivery.ack()
        assert reminders.claim(wait=60)
    work(app, "reports", put=1)
    lines = [json.loads(line) for line in run("schedules", "--json").output.splitlines()]
    ann, reports, sweeps_facts = lines
    assert [end["how"] for end in ann["runs"]] == ["dead", *["acked"] * 9]
    first, second = ann["runs"][1:3]
    assert first["due"] - second["due"] == 100
    assert first["ended"] >= first["due"]
    assert "runs" not in reports
    assert sweeps_facts["runs"] == []
    seen = re.sub(r"\x1b\[[0-9;]*m", "", terminal("schedules", COLUMNS="180")[0])
    assert "last 10: 1 dead, 9 acked" in seen


def test_more_messages_than_are_read(run: Bide, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bide.cli.work.schedules.MOST", 2)
    with bide.Queue("reminders", url) as reminders:
        for number in range(3):
            reminders.put("x", id=f"m{number}", repeat=bide.Every("1d"))
    with bide.Queue("others", url) as others:
        others.put("x", id="m", repeat=bide.Every("1d"))
    done = run("schedules")
    assert [line.split("\t")[:2] for line in done.stdout.splitlines()] == [
        ["others", "m"],
        ["reminders", "m0"],
    ]
    assert "reminders: only the first 2 messages were read" in done.stderr
    assert "only the first 2 are shown" in done.stderr


def test_an_app_and_what_else_repeats(url: str, tmp_path: Path, shell: Shell) -> None:
    work(made(url), "sweeps", put=1)
    with bide.Queue("reminders", url) as reminders:
        reminders.put("x", id="ann", repeat=bide.Every("1d"))
    with bide.Queue("sweeps", url) as sweeps:
        sweeps.edit("schedule", repeat=bide.Every("2h"))
    (tmp_path / "shop.py").write_text(APP.format(every="1h30m"))
    lines = [
        json.loads(line) for line in shell("bide schedules shop:app --json").stdout.splitlines()
    ]
    assert [(line["queue"], line["when"]) for line in lines] == [
        ("reports", "0 9 * * MON-FRI"),
        ("sweeps", "every 2h"),
        ("reminders", "every 1d"),
    ]
    assert [line.get("edited", False) for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    ("target", "said"),
    [("nowhere:app", "there is no module 'nowhere'"), ("shop.py", "names no app")],
)
def test_an_app_that_is_not_there(run: Bide, target: str, said: str) -> None:
    done = run("schedules", target)
    assert done.exit_code == 2
    assert said in done.stderr
