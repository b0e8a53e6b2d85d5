"""A process is killed with -9 in the middle of a tick."""

import os
import signal
import time
from pathlib import Path

import pytest

import bide
from tests.effort import one_in
from tests.system.worker.processes import children, log, wait_for, worker

SOURCE = """
import os, time
from pathlib import Path
import bide

app = bide.App()


@app.schedule("reports", every="1s", missed="MISSED", lease="1s", grace="500ms")
def report(tick: bide.Tick, delivery: bide.Handling) -> None:
    previous = tick.previous.timestamp() if tick.previous else 0
    print("tick", tick.due.timestamp(), previous, delivery.attempt, tick.missed, flush=True)
    while Path("hang").exists():
        time.sleep(0.01)
    print("tock", tick.due.timestamp(), flush=True)
"""


def ticks(folder: Path) -> list[list[str]]:
    """Return what each tick has written: due, previous, attempt, missed."""
    lines = [line.split() for line in log(folder).splitlines()]
    return [line[1:] for line in lines if line[:1] == ["tick"]]


@pytest.mark.process
@pytest.mark.parametrize("missed", one_in(3, ["all", "once", "skip"]))
def test_a_tick_that_was_killed_is_run_again_and_the_schedule_goes_on(
    tmp_path: Path, missed: str
) -> None:
    source = SOURCE.replace("MISSED", missed)
    (tmp_path / "hang").touch()
    with worker(tmp_path, source, "--processes", "2", "--log-level", "warning") as process:
        wait_for(lambda: ticks(tmp_path), tmp_path)
        with bide.Queue("reports", f"sqlite:///{tmp_path / 'bide.db'}") as reports:
            message = reports.get("schedule")
            assert message is not None
            holder = int((message.holder or "").rpartition(":")[2])
        assert holder in children(process)
        os.kill(holder, signal.SIGKILL)
        wait_for(lambda: len(ticks(tmp_path)) == 2, tmp_path)
        due = float(ticks(tmp_path)[0][0])
        wait_for(lambda: time.time() > due + 2, tmp_path)  # the next one is missed
        (tmp_path / "hang").unlink()
        wait_for(lambda: len(ticks(tmp_path)) >= 5, tmp_path)
    first, second, third, *_ = ticks(tmp_path)
    assert first[1:] == ["0", "1", "False"]
    assert second == [first[0], "0", "2", "False"]  # it had begun in time
    assert third[1] == first[0]
    assert (float(third[0]) == float(first[0]) + 1) is (missed == "all")
    lines = [line.split()[:2] for line in log(tmp_path).splitlines() if line[:2] in ("ti", "to")]
    for begin, end in zip(lines[1::2], lines[2::2], strict=False):  # after the one that was killed
        assert (begin[0], end[0]) == ("tick", "tock")  # none overlaps another one
        assert begin[1] == end[1]
    with bide.Queue("reports", f"sqlite:///{tmp_path / 'bide.db'}") as reports:
        assert reports.audit()
        flow = reports.counts().flow
        assert flow.lapsed + flow.retried == 1  # it lapsed, or the next process was faster
        assert not reports.counts().sizes.dead
