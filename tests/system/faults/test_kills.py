"""Processes that work on one file are killed with -9 at random, again and again."""

import sqlite3
import time
from pathlib import Path

import pytest

import bide
from tests.effort import effort
from tests.system.faults.workload import Crew

pytestmark = pytest.mark.process

PROCESSES = 4
SECONDS = effort(4, 15)
PATIENCE = 60.0
"""On a machine that has other things to do it takes longer until enough has happened."""


def test_nothing_confirmed_is_lost_whoever_is_killed_whenever(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    killed = 0
    begin = time.monotonic()
    with Crew(url, tmp_path, PROCESSES) as crew:
        while (passed := time.monotonic() - begin) < SECONDS or (
            passed < PATIENCE and not (killed > 30 and enough(url))
        ):
            time.sleep(crew.chance.uniform(0.02, 0.12))  # a random point of whatever they are at
            crew.replace_one()
            killed += 1
        crew.dismiss()
    connection = sqlite3.connect(tmp_path / "bide.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert killed > 30
    assert enough(url)


def enough(url: str) -> bool:
    """Tell whether it was worth it: much was done, and many died while they were at it."""
    with bide.Queue("orders", url) as orders:
        flow = orders.counts().flow
    return flow.acked > 200 and flow.cancelled > 5 and flow.lapsed > 5
