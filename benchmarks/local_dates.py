"""Local dates: how long it takes until all are planned by newer rules of their zone.

`python -m benchmarks.local_dates 20000 sqlite` moves so many, on one kind of store.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bide
from benchmarks.compare.stores import open_store
from benchmarks.figure import Figure
from bide.consuming.zone_update import update_queue
from bide.lane.shared import close_lane, open_lane
from bide.model.zones import own_zones
from tests.zone_data import BEFORE, LATER, TOWN, machine_with, write_zones

__all__ = ["run"]

COUNT = 100_000
BATCH = 5_000
GOAL_MS = 0.6
"""For each date: a hundred thousand in a minute, on a slow machine."""


def run(only: str, count: int = COUNT) -> Iterator[Figure]:
    """Yield the figures of all stores whose name has a word."""
    for kind in ("memory", "sqlite", "postgres", "redis"):
        if only in kind:
            with open_store(kind, Path.cwd()) as url, tempfile.TemporaryDirectory() as folder:
                yield _moved(kind, url, Path(folder), count)


def _moved(kind: str, url: str, folder: Path, count: int) -> Figure:
    """Put dates, one for each minute, and move all of them."""
    old = write_zones(folder / "old", "2099a", {TOWN: BEFORE})
    new = write_zones(folder / "new", "2099b", {TOWN: LATER})
    start = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0) + timedelta(days=1)
    with bide.Queue("dates", url) as queue:
        with machine_with(old):
            for first in range(0, count, BATCH):
                numbers = range(first, min(first + BATCH, count))
                queue.put_many(
                    bide.NewMessage(n, at=start + timedelta(minutes=n), timezone=TOWN)
                    for n in numbers
                )
        lane = open_lane(url)
        with machine_with(new):
            begin = time.perf_counter()
            moved = asyncio.run(update_queue(lane.acall, "dates", own_zones()))
            took = time.perf_counter() - begin
        close_lane(lane)
        assert moved == count
        assert queue.audit()
        earliest = next(iter(queue.scan("delayed")))
        assert earliest.due_at == start.replace(tzinfo=UTC) - timedelta(hours=1)
    name = f"{count:,} dates are moved on {kind}"
    ratio = took * 1000 / count / GOAL_MS
    return Figure(name, took, "s", GOAL_MS * count / 1000, ratio, "<= 100%", ratio <= 1)


if __name__ == "__main__":
    for figure in run(sys.argv[2] if len(sys.argv) > 2 else "", int(sys.argv[1])):
        print(f"{figure.name}: {figure.value:.1f} {figure.unit}", flush=True)
