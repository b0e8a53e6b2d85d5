"""What is measured of the service, and what is to be reached."""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.core.store import folder
from benchmarks.figure import Figure
from benchmarks.server.pieces import lone_calls

__all__ = ["run"]

SECONDS = 4.0
RUNS = 3
IDLE_SECONDS = 8.0


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (singles, batches, drain, polls, idle, lone_calls):
        if only in measurement.__name__:
            yield from measurement()


def singles() -> Iterator[Figure]:
    """Put one message a request, over 64 connections."""
    for store, least in ((None, 6_000), ("memory://", 10_000)):
        with served(store) as (port, _):
            rate = statistics.median(load(port, "singles", SECONDS)["rate"] for _ in range(RUNS))
        name = f"single puts, 64 connections, {'memory' if store else 'SQLite with fsync'}"
        yield Figure(name, rate, "/s", goal=f"{least:,} /s", met=rate >= least)


def batches() -> Iterator[Figure]:
    """Put 500 messages a request."""
    with served(None) as (port, _):
        rate = statistics.median(load(port, "batches", SECONDS)["rate"] for _ in range(RUNS))
    yield Figure("puts of 500 messages, SQLite", rate, "/s", goal="80,000 /s", met=rate >= 80_000)


def drain() -> Iterator[Figure]:
    """Claim 100 at a time, and ack them."""
    with served(None) as (port, _):
        rate = load(port, "drain", SECONDS)["rate"]
    yield Figure("claim(100) + ack, SQLite", rate, "/s", goal="30,000 /s", met=rate >= 30_000)


def polls() -> Iterator[Figure]:
    """How late a claim that waits is answered."""
    with served(None) as (port, _):
        found = load(port, "polls", SECONDS * 3)
    p99 = found["p99"]
    yield Figure("a long poll wakes after due, p50", found["p50"], "ms")
    yield Figure("a long poll wakes after due, p99", p99, "ms", goal="< 5 ms", met=p99 < 5)


def idle() -> Iterator[Figure]:
    """What a thousand claims that wait cost."""
    with served(None) as (port, pid):
        command = [sys.executable, "-m", "benchmarks.server.load", str(port), "idle"]
        with subprocess.Popen(
            [*command, str(IDLE_SECONDS + 1)], stdout=subprocess.PIPE, text=True
        ) as waiting:
            assert waiting.stdout is not None
            waiting.stdout.readline()
            before, began = _cpu(pid), time.perf_counter()
            time.sleep(IDLE_SECONDS)
            share = (_cpu(pid) - before) / (time.perf_counter() - began) * 100
    yield Figure("1,000 idle long polls, processor", share, "%", goal="< 2 %", met=share < 2)


def load(port: int, work: str, seconds: float) -> dict[str, float]:
    """Run the load program, and return what it found."""
    command = [sys.executable, "-m", "benchmarks.server.load", str(port), work, str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def served(store: str | None) -> Iterator[tuple[int, int]]:
    """Run a server; give its port, and the id of the process that answers."""
    with folder() as path:
        url = store or f"sqlite:///{path}/bide.db"
        command = [
            sys.executable,
            "-m",
            "bide",
            "serve",
            "--port",
            "0",
            "--store",
            url,
        ]
        log = Path(path) / "log"
        environment: dict[str, Any] = {**os.environ, "BIDE_SERVE_CONFIG": _quiet(Path(path))}
        with log.open("wb") as out:
            process = subprocess.Popen(command, stderr=out, env=environment)
        try:
            port = int(_until(log, r"listening on \S+:(\d+),"))
            _until_it_answers(port)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield port, int(children.split()[0])
        finally:
            process.terminate()
            process.wait()


def _quiet(path: Path) -> str:
    """Return a file of settings by which the access log is written, as in production."""
    file = path / "serve.toml"
    file.write_text("log_json = true\n")
    return str(file)


def _until(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise TimeoutError(log.read_text())


def _until_it_answers(port: int) -> None:
    import urllib.request

    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20).close()


def _cpu(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
