"""What a process costs that waits, while nothing is due."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import bide
from benchmarks.figure import Figure
from benchmarks.postgres.store import backend_seconds
from tests.postgres_server import PostgresServer

__all__ = ["idle"]

SECONDS = 30
SETTLE = 15
"""Seconds until a worker has started and is at rest."""

app = bide.App()


@app.handler("work")
async def nothing(message: object) -> None:
    """Do nothing."""


def idle(queue: bide.Queue, server: PostgresServer) -> Iterator[Figure]:
    """A claim that waits, and a worker process: their statements, and what both ends cost."""
    before, spent = _executed(server), _spent(server, os.getpid())
    queue.claim(1, wait=SECONDS)
    # The first asks, and says that it sleeps.
    yield from _figures(
        "claimer", _executed(server) - before - 2, _spent(server, os.getpid()) - spent
    )
    command = [sys.executable, "-m", "bide", "worker", f"{__name__}:app", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as worker:
        time.sleep(SETTLE)
        before, spent = _executed(server), _spent(server, worker.pid)
        time.sleep(SECONDS)
        yield from _figures(
            "worker", _executed(server) - before, _spent(server, worker.pid) - spent
        )
        worker.terminate()


def _figures(who: str, statements: int, spent: float) -> Iterator[Figure]:
    pace, share = statements / SECONDS, spent * 10 / SECONDS
    yield Figure(f"an idle {who}: statements", pace, "/s", goal="1 /s", met=pace <= 1)
    yield Figure(
        f"an idle {who}: processor in 10 s, both ends",
        share,
        "s",
        goal="< 0.05 s",
        met=share < 0.05,
    )


def _executed(server: PostgresServer) -> int:
    """Return how many prepared statements the log tells of: bide's, and of nobody else."""
    return (server.folder / "log").read_text().count("LOG:  execute ")


def _spent(server: PostgresServer, process: int) -> float:
    """Return the processor time of a process with its children, and of bide's backends."""
    return backend_seconds(server) + _of_tree(process)


def _of_tree(process: int) -> float:
    """Return the processor time of a process and of its children."""
    total = 0.0
    for task in Path(f"/proc/{process}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0]) / 1e9
        total += sum(map(_of_tree, map(int, (task / "children").read_text().split())))
    return total
