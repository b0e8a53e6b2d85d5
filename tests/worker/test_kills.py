"""Workers killed with -9, again and again, under load: nothing confirmed is lost."""

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import bide
from tests.worker.processes import children, wait_for, worker

SECONDS = 9.0
LEASE = 1.0
POISON = "poison"

SOURCE = """
import asyncio, os, signal, time
import bide

app = bide.App()
journal = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def note(what, delivery):
    now = time.time_ns() // 1_000_000
    line = f"{what} {delivery.id} {delivery.attempt} {delivery.claimed} {now}\\n"
    os.write(journal, line.encode())


@app.handler("async", lease="1s", concurrency=32)
async def on_loop(delivery: bide.Handling) -> None:
    note("begin", delivery)
    if delivery.id == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.02)
    note("end", delivery)


@app.handler("plain", lease="1s", concurrency=8)
def in_thread(delivery: bide.Handling) -> None:
    note("begin", delivery)
    time.sleep(0.02)
    note("end", delivery)
"""


class Handled(NamedTuple):
    """One handling, as its handler has written it down. Moments are Unix milliseconds."""

    id: str
    attempt: int
    claimed: int
    begun: int
    ended: int | None


def read(journal: Path) -> list[Handled]:
    begun: dict[tuple[str, str], list[int]] = {}
    ended: dict[tuple[str, str], int] = {}
    for line in journal.read_text().splitlines():
        what, id, attempt, claimed, moment = line.split(" ")
        if what == "begin":
            assert (id, claimed) not in begun, "one claim was handled twice"
            begun[id, claimed] = [int(attempt), int(claimed), int(moment)]
        else:
            ended[id, claimed] = int(moment)
    return [
        Handled(key[0], attempt, claimed, moment, ended.get(key))
        for key, (attempt, claimed, moment) in begun.items()
    ]


@pytest.mark.process
def test_nothing_confirmed_is_lost_and_overlaps_are_explained(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bide.db'}"
    confirmed: list[str] = []
    chance = random.Random(7)
    with (
        worker(tmp_path, SOURCE, "--processes", "3", "--log-level", "error") as process,
        bide.Queue("async", url) as loops,
        bide.Queue("plain", url) as threads,
    ):
        wait_for(lambda: len(children(process)) == 3, tmp_path)
        loops.put("x", id=POISON, attempts=3)
        end = time.monotonic() + SECONDS
        kill = time.monotonic() + 1.5
        numbers = itertools.count()
        while time.monotonic() < end:
            for queue, kind in ((loops, "a"), (threads, "p")):
                ids = [f"{kind}{next(numbers)}" for _ in range(3)]
                queue.put_many(
                    [bide.NewMessage(body=id, id=id, delay=chance.random()) for id in ids]
                )
                confirmed += ids
            if time.monotonic() > kill and (alive := children(process)):
                os.kill(chance.choice(alive), signal.SIGKILL)
                kill = time.monotonic() + 0.8
            time.sleep(0.01)
        wait_for(lambda: loops.counts().sizes.total == 1, tmp_path)
        wait_for(lambda: threads.counts().sizes.total == 0, tmp_path)
        letter = loops.get(POISON)
        assert letter is not None
        assert (letter.state, letter.attempt) == ("dead", 3)
        assert "the lease lapsed" in (letter.error or "")
        assert loops.audit()
        assert threads.audit()
        flow = loops.counts().flow
    handled = read(tmp_path / "journal")
    assert len(confirmed) > 300
    assert flow.lapsed >= 3
    done = {one.id for one in handled if one.ended is not None}
    assert set(confirmed) <= done
    by_id: dict[str, list[Handled]] = {}
    for one in sorted(handled, key=lambda one: one.claimed):
        by_id.setdefault(one.id, []).append(one)
    for attempts in by_id.values():
        for first, second in itertools.pairwise(attempts):
            explained = second.claimed >= first.claimed + LEASE * 1000
            assert explained or (first.ended is not None and second.begun >= first.ended), (
                first, second,
            )  # fmt: skip
