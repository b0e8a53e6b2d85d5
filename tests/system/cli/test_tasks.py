"""`bide tasks`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Bide = Callable[..., Result]
Shell = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]

SHOP = """
from dataclasses import dataclass
import bide

app = bide.App("redis://nowhere/0")
empty = bide.App("redis://nowhere/0")

@dataclass
class Mail:
    to: str

@app.task(queue="orders", retry=bide.Backoff(attempts=5))
def expire(order: int, *, reason: str = "unpaid") -> None: ...

@app.task(timeout="30s", lease="2m")
async def charge(order: int, delivery: bide.Delivery | None = None) -> None: ...

@app.job("meetings")
class Remind(bide.Job):
    meeting: int
    def run(self): ...

@app.handler("mails", concurrency=3)
def send(mail: Mail) -> None: ...

@app.handler("raw", limit=5, rate="100/m", history="7d")
def take_anything(body) -> None: ...

@app.source("orders", every="1m", window="10m")
def unpaid(after, before):
    return []

@app.schedule("reports", every="1h")
def report() -> None: ...
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)


def test_everything_that_a_worker_works_on(shell: Shell) -> None:
    assert shell("bide tasks shop:app").stdout.splitlines() == [
        "task\texpire\torders\t(order: int, *, reason: str = 'unpaid')\t60000\t16\t\t5\t",
        "task\tcharge\tcharge\t(order: int)\t120000\t64\t30000\t10\t",
        "job\tRemind\tmeetings\t(meeting: int)\t60000\t16\t\t10\t",
        "handler\tshop.send\tmails\tMail\t60000\t3\t\t10\t",
        "handler\tshop.take_anything\traw\t\t60000\t16\t\t10\thistory 7d, limit 5, rate 100/m",
        "source\tunpaid\torders\t\t60000\t1\t\t10000\t",
        "schedule\tshop.report\treports\t\t60000\t1\t\t10\t",
    ]


def test_json_has_the_function_too(shell: Shell) -> None:
    lines = [json.loads(line) for line in shell("bide tasks shop:app --json").stdout.splitlines()]
    assert len(lines) == 7
    assert lines[1] == {
        "kind": "task",
        "name": "charge",
        "queue": "charge",
        "takes": "(order: int)",
        "function": "shop.charge",
        "lease": 120_000,
        "concurrency": 64,
        "timeout": 30_000,
        "attempts": 10,
        "declared": {},
    }
    assert lines[4]["declared"] == {"limit": 5, "rate": "100/m", "history": 604_800_000}
    assert "timeout" not in lines[0]
    assert lines[2]["function"] == "shop.Remind.run"


def test_a_table_on_a_terminal(terminal: Terminal) -> None:
    seen, code = terminal("tasks", "shop:app", COLUMNS="130")
    assert code == 0
    seen = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert re.search(r"kind +name +takes +queue +lease +concurrency +timeout +attempts", seen)
    assert re.search(r"task +expire +\(order: int, \*, reason: str = 'unpaid'\) +orders +1m", seen)
    assert re.search(r"task +charge +\(order: int\) +charge +2m +64 +30s +10", seen)
    assert re.search(r"source +unpaid +orders +1m +1 *\r?\n", seen)


def test_an_app_without_any(shell: Shell, terminal: Terminal) -> None:
    quiet = shell("bide tasks shop:empty")
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == ("", "", 0)
    assert "shop:empty has no tasks, jobs or handlers" in terminal("tasks", "shop:empty")[0]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("shop.py", "names no app"),
        ("shop:expire", "is not a bide.App; it has: shop:app"),
    ],
)
def test_an_app_that_is_not_there(shell: Shell, target: str, why: str) -> None:
    result = shell(f"bide tasks {target}")
    assert result.returncode == 2
    assert why in result.stderr
