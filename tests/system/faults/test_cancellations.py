"""Cancelled tasks and greenlets that time out: no false answer, no hang, and the books balance."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import bide
from tests.effort import effort, one_in
from tests.system.faults.ledger import Ledger
from tests.system.faults.strikes import cancellations, own_threads

pytestmark = pytest.mark.process

HITS = effort(100, 2_000)

CALLERS = 3
"""How many threads call at the same time, so that batches have calls of several."""


def test_cancelled_tasks(url: str) -> None:
    with cancellations() as strikes:
        queues: list[bide.AsyncQueue] = []

        def async_queue(name: str, url: str) -> bide.AsyncQueue:
            queues.append(bide.AsyncQueue(name, url))
            return queues[-1]

        ledgers = [
            Ledger(
                url,
                strikes,
                queue=async_queue,
                name=str(number),
                wait=0.01,
                releases=True,
                seed=number,
            )
            for number in range(CALLERS)
        ]

        def call(ledger: Ledger) -> None:
            while strikes.hits < HITS:
                ledger.turn()

        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(call, ledgers))
        assert own_threads()
        assert [problem for ledger in ledgers for problem in ledger.problems()] == []
        for queue in queues:
            asyncio.run(queue.close())


@pytest.mark.parametrize(
    "url", one_in(3, ["sqlite", "memory", "postgres", "redis", "cluster", "http"]), indirect=True
)
def test_greenlets_that_time_out(url: str) -> None:
    """In a process of its own: gevent replaces what the standard library waits with."""
    command = [sys.executable, "-m", "tests.system.faults.greenlets", url, str(HITS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    *problems, hits = run.stdout.splitlines()
    assert problems == []
    assert int(hits) >= HITS
    assert "Traceback" not in run.stderr
