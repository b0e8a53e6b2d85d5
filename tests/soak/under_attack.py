"""Attack a server, and see that everybody else is served meanwhile.

python -m tests.soak.under_attack                      # each attack 20 s, then all together 5 min
python -m tests.soak.under_attack --attack slow_heads --seconds 10

The server has one core, 512 MB of data and 256 file descriptors. The attackers run on the other
core, from several loopback addresses. A probe puts one message at a time from an address and in a
namespace of its own. Its p99 may be 50 ms, or five times that of a run without an attack.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import bide
from bide.lane.shared import close_lane, open_lane
from bide.server.access.tokens import Tokens
from tests.soak.attacks import ATTACKS, SEEN
from tests.soak.target import Target

MEMORY = 512 << 20
DESCRIPTORS = 256
PROBE = "127.0.0.77"


class Probed(NamedTuple):
    """What the probe saw; milliseconds."""

    puts: int
    failed: int
    p50: float
    p99: float
    worst: float


def _limit() -> None:
    os.sched_setaffinity(0, {0})
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


@contextmanager
def _server(store: str, log: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bide",
                "serve",
                "--store",
                store,
                "--port",
                "0",
                "--auth",
                "required",
                "--allow-network",
                "127.0.0.0/8",
                "--dashboard",
            ],
            stderr=output,
            stdout=output,
            preexec_fn=_limit,
        )
    try:
        for _ in range(200):
            if "127.0.0.1:" in (text := log.read_text("utf-8", "replace")):
                yield int(text.split("127.0.0.1:")[1].split()[0].rstrip("/,")), process
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start: {log.read_text('utf-8', 'replace')}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _attack(names: Sequence[str], target: Target, seconds: float) -> None:
    os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (8_192, 8_192))

    async def run() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(ATTACKS[name](target))  # type: ignore[arg-type]

    asyncio.run(run())


def _probe(port: int, token: str, seconds: float) -> Probed:
    """Put one message at a time; a connection that was closed is opened again once."""
    took: list[float] = []
    failed = 0
    end = time.monotonic() + seconds
    body = json.dumps({"body": "x" * 256, "delay": 3_600})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection: http.client.HTTPConnection | None = None
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            if connection is None:
                connection = http.client.HTTPConnection(
                    "127.0.0.1", port, timeout=30, source_address=(PROBE, 0)
                )
            connection.request("POST", "/v1/queues/orders/messages", body, headers)
            answer = connection.getresponse()
            answer.read()
            failed += answer.status not in (200, 201)
        except (OSError, http.client.HTTPException):
            failed += 1
            connection = None
        took.append((time.monotonic() - began) * 1000)
        time.sleep(0.005)
    took.sort()
    return Probed(len(took), failed, took[len(took) // 2], took[len(took) * 99 // 100], took[-1])


def _answering(supervisor: int) -> list[int]:
    """The processes that answer."""
    path = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    return [int(word) for word in path.read_text("ascii").split()]


def _memory(pid: int) -> int:
    """The most memory that the process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run(names: Sequence[str], seconds: float, alone: Probed | None) -> tuple[Probed, list[str]]:
    """Attack a new server for so long; return what the probe saw, and what was wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder).absolute()}/bide.db"
        lane = open_lane(store)
        tokens = Tokens(lane)
        evil, _ = tokens.create("evil", ["admin"])
        shop, _ = tokens.create("shop", ["put"])
        close_lane(lane)
        with _server(store, Path(folder) / "log") as (port, server):
            attackers = multiprocessing.get_context("spawn").Process(
                target=_attack, args=(names, Target("127.0.0.1", port, evil), seconds + 3)
            )
            attackers.start()
            before = _answering(server.pid)
            time.sleep(2 if names else 0)
            probed = _probe(port, shop, seconds)
            if names and not attackers.is_alive():
                wrong.append("the attackers gave up")
            attackers.terminate()
            attackers.join()
            if server.poll() is not None:
                wrong.append(f"the server ended with {server.returncode}")
            else:
                answering = _answering(server.pid)
                if answering != before:
                    wrong.append("a process died, and another took its place")
                memory = max(map(_memory, answering), default=0)
                if memory > MEMORY:
                    wrong.append(f"it took {memory >> 20} MB")
        log = (Path(folder) / "log").read_text("utf-8", "replace")
        wrong += [
            f"{name} was none: no {SEEN[name]!r} in the log"
            for name in names
            if name in SEEN and len(names) == 1 and not re.search(SEEN[name], log)
        ]
        if "Traceback" in log:
            wrong.append("a traceback is in the log: " + log[log.index("Traceback") :][:2_000])
        with bide.Queue("shop/orders", store) as orders:
            if not orders.audit():
                wrong.append("the audit does not balance")
            if orders.counts().flow.put < probed.puts - probed.failed:
                wrong.append("a put that was confirmed is gone")
    if probed.failed:
        wrong.append(f"{probed.failed} of {probed.puts} puts failed")
    if alone is not None and probed.p99 > max(50.0, 5 * alone.p99):
        wrong.append(f"p99 {probed.p99:.0f} ms, alone {alone.p99:.1f} ms")
    return probed, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack for as long as is asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", choices=[*ATTACKS, "all"], action="append")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--together", type=float, default=300, help="seconds for all at once")
    options = parser.parse_args(arguments)
    alone, wrong = run([], min(10, options.seconds), None)
    failures = list(wrong)
    _print("alone", alone, wrong)
    for name in options.attack or [*ATTACKS, "all"]:
        names, seconds = (
            ([*ATTACKS], options.together) if name == "all" else ([name], options.seconds)
        )
        probed, wrong = run(names, seconds, alone)
        failures += [f"{name}: {problem}" for problem in wrong]
        _print(name, probed, wrong)
    print(f"{len(failures)} problems")
    return 1 if failures else 0


def _print(name: str, probed: Probed, wrong: Sequence[str]) -> None:
    print(
        f"{name:20} puts {probed.puts:6,}  failed {probed.failed:4}  p50 {probed.p50:6.1f} ms  "
        f"p99 {probed.p99:7.1f} ms  max {probed.worst:7.0f} ms  {'; '.join(wrong) or 'ok'}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
