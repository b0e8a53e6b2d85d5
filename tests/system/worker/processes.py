"""`bide worker` as a process of its own, and what its handlers have written down."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bide

BOUND = 60.0

APP = """
import asyncio, bide
app = bide.App()

@app.handler("q")
async def handle(body: dict, delivery: bide.Handling) -> None:
    print("VERSION began", flush=True)
    await asyncio.sleep(body.get("sleep", 0))
    print("VERSION ended", flush=True)
"""

SLOW_TO_BEGIN = """
import asyncio, os, bide
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(app):
    if os.path.exists("slow"):
        print("begins slowly", flush=True)
        try:
            await asyncio.sleep(1000)
        finally:
            print("cleaned up", flush=True)
    yield

app = bide.App(lifespan=lifespan)

@app.handler("q")
async def handle(body: dict) -> None:
    print("ended", flush=True)
"""


@contextmanager
def worker(folder: Path, source: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `bide worker jobs:app` in a folder; what it logs goes to `log` there."""
    (folder / "jobs.py").write_text(source)
    environment = {**os.environ, "BIDE_URL": f"sqlite:///{folder / 'bide.db'}"}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bide", "worker", "jobs:app", *options],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )
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


def health(port: int) -> str:
    """Return what the health port says, whether the supervisor has heard that all are ready."""
    try:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=BOUND)
    except urllib.error.HTTPError as not_ready:
        answer = not_ready
    with answer:
        return str(answer.read().decode())


def put(folder: Path, **body: float) -> None:
    with bide.Queue("q", f"sqlite:///{folder / 'bide.db'}") as queue:
        queue.put(body)


def counts(folder: Path) -> bide.Counts:
    with bide.Queue("q", f"sqlite:///{folder / 'bide.db'}") as queue:
        return queue.counts()


def said(folder: Path, text: str, times: int = 1) -> Callable[[], bool]:
    return lambda: log(folder).count(text) >= times
