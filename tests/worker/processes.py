"""`bide worker` as a process of its own, and what its handlers have written down."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BOUND = 30.0


@contextmanager
def worker(folder: Path, source: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `bide worker jobs:app` in a folder; what it logs goes to `log` there."""
    (folder / "jobs.py").write_text(source)
    environment = {**os.environ, "BIDE_URL": f"sqlite:///{folder / 'bide.db'}"}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bide", "worker", "jobs:app", *options],
            cwd=folder, env=environment, stdout=log, stderr=log, text=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        deadline = time.monotonic() + BOUND
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)  # the second hands back; two at once would be one
            try:
                process.wait(0.3)
            except subprocess.TimeoutExpired:
                continue
        process.kill()
        process.wait()


def children(process: "subprocess.Popen[str]") -> list[int]:
    """Return the processes that a process has started and that still run."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in listed]


def log(folder: Path) -> str:
    return (folder / "log").read_text()


def wait_for(condition: Callable[[], object], folder: Path | None = None) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        told = log(folder) if folder is not None else ""
        assert time.monotonic() < deadline, f"it did not come to pass\n{told}"
        time.sleep(0.01)
