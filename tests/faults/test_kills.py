"""Processes that work on one file are killed with -9 at random, again and again."""

import multiprocessing
import random
import sqlite3
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import bide
from tests.faults.checker import check, check_counts
from tests.faults.journal import read
from tests.faults.worker import drain, work

pytestmark = pytest.mark.process

PROCESSES = 4
SECONDS = 10.0
PATIENCE = 60.0
"""On a machine that has other things to do it takes longer until enough has happened."""


def test_nothing_confirmed_is_lost_whoever_is_killed_whenever(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.worker"])
    chance = random.Random()
    born = 0

    def bear() -> BaseProcess:
        nonlocal born
        born += 1
        name, seed = f"w{born}", chance.randrange(1 << 32)
        process = context.Process(target=work, args=(url, name, seed, tmp_path), daemon=True)
        process.start()
        return process

    living = [bear() for _ in range(PROCESSES)]
    killed = 0
    begin = time.monotonic()
    try:
        while (passed := time.monotonic() - begin) < SECONDS or (
            passed < PATIENCE and not (killed > 30 and enough(url))
        ):
            time.sleep(chance.uniform(0.02, 0.12))  # a random point of whatever they are at
            victim = living.pop(chance.randrange(PROCESSES))
            assert victim.is_alive(), f"a worker died by itself: exit code {victim.exitcode}"
            victim.kill()
            victim.join()
            killed += 1
            living.append(bear())
        assert all(process.is_alive() for process in living)
    finally:
        for process in living:
            process.kill()
            process.join()
    drain(url, tmp_path)
    journals = [list(read(path)) for path in tmp_path.glob("*.journal")]
    with bide.Queue("orders", url) as orders:
        audit = orders.audit()
    assert check(journals) == []
    assert check_counts(journals, audit.counts) == []
    assert audit, audit.problems
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
