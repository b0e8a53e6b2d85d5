"""Processes that run messages that repeat are killed with -9: no run is lost, none is run twice."""

import random
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.model.runs import Run, run_id
from bide.testing.history import JournalFile
from tests.effort import effort, one_in
from tests.stores_of_each_kind import url_of

pytestmark = pytest.mark.process

PERIOD = 100
MESSAGES = 10
ENOUGH = 50
"""How many runs must have been acked."""


def start(url: str, folder: Path, number: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.system.faults.repeating",
            url,
            f"w{number}",
            str(number),
            str(folder),
        ]
    )


@pytest.mark.parametrize("kind", one_in(4, ["sqlite", "postgres", "redis", "http"]))
def test_no_run_is_lost_or_confirmed_twice(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    first = datetime.now(UTC) - timedelta(hours=1)
    with url_of(kind, request) as url, bide.Queue("reminders", url) as reminders:
        # An hour is behind, so that there is always a run to do.
        rule = bide.Every(f"{PERIOD}ms", start=first, missed="all")
        for number in range(MESSAGES):
            reminders.put("x", id=f"m{number}", repeat=rule, at=rule.start, attempts=3)
        kill_at_random(url, tmp_path, reminders)
        time.sleep(0.5)  # what the last ones held has lapsed
        check(reminders, tmp_path)


def kill_at_random(url: str, folder: Path, reminders: bide.Queue) -> None:
    """Let processes work, and kill one after the other, until enough has happened."""
    chance = random.Random(43)
    numbers = [0, 1, 2]
    processes = [start(url, folder, number) for number in numbers]
    begin, killed = time.monotonic(), 0
    try:
        while (passed := time.monotonic() - begin) < effort(2, 15) or (
            passed < 60 and not (killed >= 10 and reminders.counts().flow.acked >= ENOUGH)
        ):
            time.sleep(chance.uniform(0.1, 0.5))
            victim = chance.randrange(3)
            if not is_at_work(folder, numbers[victim]):
                continue
            processes[victim].kill()
            processes[victim].wait()
            killed += 1
            numbers[victim] = 2 + killed
            processes[victim] = start(url, folder, numbers[victim])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert killed >= 10
    assert reminders.counts().flow.acked >= ENOUGH


def is_at_work(folder: Path, number: int) -> bool:
    """Tell whether a process has acked a run."""
    journal = folder / f"w{number}.journal"
    return journal.exists() and any(entry.get("did") == "ack" for entry in JournalFile(journal))


def check(reminders: bide.Queue, folder: Path) -> None:
    """See that each run of each message was acked or is a dead letter, up to the present one."""
    tried: set[tuple[str, int]] = set()
    confirmed: Counter[tuple[str, int]] = Counter()
    for path in folder.glob("*.journal"):
        for entry in JournalFile(path):
            if "ack" not in (entry.get("tries"), entry.get("did")):
                continue
            key = (entry["id"], Run.of(entry["run"]).at)
            tried.add(key)
            confirmed[key] += "did" in entry
    assert max(confirmed.values()) == 1, "a run was confirmed twice"
    letters = {letter.id for letter in reminders.dead()}
    assert letters
    messages: dict[str, Any] = {message.id: message for message in reminders.scan()}
    assert {id for id in messages if "@" not in id} == {f"m{number}" for number in range(MESSAGES)}
    for number in range(MESSAGES):
        message = messages[f"m{number}"]
        assert message.state in ("ready", "delayed", "leased")
        start_ms = round(message.repeat.start.timestamp() * 1000)
        present = Run.of(message.run).at
        assert present > start_ms
        for at in range(start_ms, present, PERIOD):
            key, is_dead = (message.id, at), run_id(message.id, at) in letters
            assert key in tried or is_dead, f"the run {key} was lost"
            assert not (is_dead and confirmed[key]), f"the run {key} was acked, and is dead"
    assert reminders.audit()
