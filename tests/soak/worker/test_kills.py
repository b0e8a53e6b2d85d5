"""Workers killed with -9 under load: nothing confirmed is lost, each tick and window comes once."""

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import bide
from tests.effort import effort
from tests.soak.worker import kills
from tests.system.worker.processes import BOUND, children, wait_for, worker

SECONDS = effort(6, 20)


@pytest.mark.full
@pytest.mark.process
def test_nothing_confirmed_is_lost_and_overlaps_are_explained(tmp_path: Path) -> None:
    result = kills.run(tmp_path, SECONDS, least=300)
    assert result.problems == []
    assert result.letter is not None
    assert "the lease lapsed" in (result.letter.error or "")
    assert len(result.confirmed) > 300
    assert result.ended_leases >= 3
    assert result.kills >= 5


LEASE = 2_000
PERIOD = 200
WINDOW = 3_000
CLAIMED = 900
"""Milliseconds that may lie between a claim, from which the lease counts, and the function."""

SLACK = 5
"""Milliseconds between reading the clock and having written it down."""

SOURCE = """
import os, time
from datetime import UTC, datetime
import bide

app = bide.App()
journal = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def note(what, *facts):
    now = time.time_ns() // 1_000_000
    os.write(journal, " ".join(map(str, (what, *facts, os.getpid(), now, "\\n"))).encode())


def ms(moment):
    return round(moment.timestamp() * 1000)


@app.schedule("ticks", every="200ms", missed="all", lease="2s")
def tick(tick: bide.Tick) -> None:
    previous = ms(tick.previous) if tick.previous else 0
    note("tick", ms(tick.due), previous)
    time.sleep(0.1)
    note("tock", ms(tick.due), previous)


@app.source("orders", every="200ms", window="3s", lease="2s")
async def unpaid(after: datetime, before: datetime):
    import asyncio

    note("ask", ms(after), ms(before))
    first = -(-ms(after) // 100)
    for number in range(first, -(-ms(before) // 100)):  # an order falls due every 100 ms
        yield bide.NewMessage(number, at=number / 10, id=f"order-{number}")
    await asyncio.sleep(0.05)
    note("told", ms(after), ms(before))


@app.handler("orders", lease="2s")
async def expire(order: int) -> None:
    note("expire", order, 0)
"""


class Run(NamedTuple):
    """One run of a function, as it was written down. Moments are Unix milliseconds."""

    first: int
    second: int
    process: int
    begun: int
    ended: int | None


def read(journal: Path, begin: str, end: str) -> list[Run]:
    begun: list[tuple[int, int, int, int]] = []
    ended: dict[tuple[int, int, int], int] = {}
    for line in journal.read_text().splitlines():
        what, *rest = line.split()
        first, second, process, moment = map(int, rest)
        if what == begin:
            begun.append((first, second, process, moment))
        elif what == end:
            ended[first, second, process] = moment
    return [Run(*one, ended.get((one[0], one[1], one[2]))) for one in begun]


@pytest.mark.full
@pytest.mark.process
def test_each_tick_and_each_window_once_among_all(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bide.db'}"
    chance = random.Random(11)
    killed: dict[int, int] = {}
    with worker(tmp_path, SOURCE, "--processes", "4", "--log-level", "warning") as process:
        wait_for(lambda: len(children(process)) == 4, tmp_path)
        journal = tmp_path / "journal"
        wait_for(journal.exists, tmp_path)
        # The very first window begins anew with whoever asks for it again; all others do not.
        wait_for(lambda: len(read(journal, "told", "told")) > 1, tmp_path)
        began = time.time()
        while (passed := time.time() - began) < SECONDS or (passed < BOUND and len(killed) <= 5):
            time.sleep(0.5)
            if alive := children(process):
                victim = chance.choice(alive)
                killed[victim] = time.time_ns() // 1_000_000
                os.kill(victim, signal.SIGKILL)
        stopped = time.time_ns() // 1_000_000
        wait_for(lambda: read(journal, "tick", "tock")[-1].first > stopped, tmp_path)
        told = len(read(journal, "told", "told"))
        wait_for(lambda: len(read(journal, "told", "told")) > told + 2, tmp_path)
        expected = set(range(int(began * 10) + 1, stopped // 100 - 20))
        wait_for(
            lambda: expected <= _orders(journal), tmp_path
        )  # one may be in a lease of the dead
    assert len(killed) > 5
    check_ticks(read(journal, "tick", "tock"), killed)
    check_windows(read(journal, "ask", "told"), killed)
    explain(read(journal, "expire", "-"), killed)
    for name in ("ticks", "orders", "bide:source:orders:unpaid"):
        with bide.Queue(name, url) as queue:
            assert queue.audit()
            assert not queue.counts().sizes.dead


def _orders(journal: Path) -> set[int]:
    """Return the orders that were handled: nobody but the source has put them."""
    return {run.first for run in read(journal, "expire", "-")}


def check_ticks(runs: list[Run], killed: dict[int, int]) -> None:
    """Each moment has its tick, and none overlaps another; one was run twice if it was killed."""
    moments = sorted({run.first for run in runs})
    assert moments == list(range(moments[0], moments[-1] + PERIOD, PERIOD))
    assert all(run.second in (0, run.first - PERIOD) for run in runs)
    for earlier, later in itertools.pairwise(sorted(runs, key=lambda run: run.begun)):
        lapsed = later.begun > earlier.begun + LEASE - CLAIMED
        has_ended = earlier.ended is not None and later.begun >= earlier.ended - SLACK
        assert lapsed or has_ended or is_killed(earlier, later, killed)
    explain(runs, killed)


def check_windows(runs: list[Run], killed: dict[int, int]) -> None:
    """Each window reaches from the asking before; none begins before that one has ended."""
    explain([run._replace(second=0) for run in runs], killed)
    done = [run for run in sorted(runs, key=lambda run: run.begun) if run.ended is not None]
    for earlier, later in itertools.pairwise(sorted(runs, key=lambda run: run.begun)):
        lapsed = later.begun > earlier.begun + LEASE - CLAIMED  # it stood still for so long
        assert lapsed or earlier.ended is None or later.begun >= earlier.ended - SLACK
    last: Run | None = None
    for run in done:
        if last is not None and run.first != last.first:
            assert run.first == last.second - WINDOW
        last = run


def is_killed(earlier: Run, later: Run, killed: dict[int, int]) -> bool:
    """Whether the process of a run was killed before a later one began."""
    return killed.get(earlier.process, 1 << 62) < later.begun + SLACK


def explain(runs: list[Run], killed: dict[int, int]) -> None:
    """Of two runs of one thing, the second began when the first's lease was over.

    It was ended because its process was killed, before or after the function had ended, or it
    lapsed because it could not be extended in time.
    """
    by_thing: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.begun):
        by_thing.setdefault(run.first, []).append(run)
    for again in by_thing.values():
        for first, second in itertools.pairwise(again):
            dead = is_killed(first, second, killed)
            assert dead or second.begun > first.begun + LEASE - CLAIMED, (first, second)
