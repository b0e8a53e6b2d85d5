"""One worker process on SQLite: no-op handlers, beside the engine's own claim and ack."""

import asyncio
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bide
from benchmarks.core.store import BODY, folder, queue_in
from benchmarks.figure import Figure
from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Ack, Claim, Lease
from bide.model.replies import Claimed
from bide.worker.process.child import loop_factory
from bide.worker.process.runner import Runner

__all__ = ["run"]

MESSAGES = 20_000
ROUNDS = 3
PAIRS = 9
BATCH = 500
BURST_SECONDS = 2.0
IDLE_SECONDS = 10
PENDING = 1_000_000


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (throughput, burst, lateness, idle):
        if only in measurement.__name__:
            yield from measurement()


def throughput() -> Iterator[Figure]:
    """Drain a backlog with handlers that do nothing, in turn with the engine alone."""
    for kind, least, share in (("async", 20_000, 0.5), ("plain", 10_000, 0.25)):
        pairs = [(_engine_alone(), _worker("drain", kind)["rate"]) for _ in range(PAIRS)]
        alone, rate = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(mine / base for base, mine in pairs)
        yield Figure(
            f"{kind} handlers, against claim({BATCH}) + ack of the engine",
            rate,
            "/s",
            alone,
            ratio,
            f"{least:,} /s, {share:.0%}",
            rate >= least and ratio >= share,
        )


def burst() -> Iterator[Figure]:
    """Twenty thousand messages that are due at the same instant."""
    found = [_worker("burst", "async")["seconds"] for _ in range(ROUNDS)]
    seconds = statistics.median(found)
    name = f"{MESSAGES:,} due at one instant, until the last is handled"
    yield Figure(name, seconds, "s", goal="< 1.5 s", met=seconds < 1.5)


def lateness() -> Iterator[Figure]:
    """Messages at an even pace, put by this process and handled by another."""
    for rate, half, all_but in ((200, 2.0, 6.0), (2_000, None, 20.0)):
        late = sorted(_worker("lateness", "async", rate)["late"])
        p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
        name = f"lateness of handling at {rate:,}/s"
        goal = "" if half is None else f"< {half:g} ms"
        yield Figure(f"{name}, p50", p50, "ms", goal=goal, met=None if half is None else p50 < half)
        yield Figure(f"{name}, p99", p99, "ms", goal=f"< {all_but:g} ms", met=p99 < all_but)


def idle() -> Iterator[Figure]:
    """A worker that waits, with a million messages far off, and with none."""
    full, empty = _worker("idle", "async"), _worker("empty", "async")
    share = full["cpu"] / IDLE_SECONDS * 100
    yield Figure("CPU of an idle worker", share, "%", goal="< 0.5 %", met=share < 0.5)
    rss, ratio = full["rss"], full["rss"] / empty["rss"]
    yield Figure(
        f"memory of an idle worker with {PENDING:,} pending, against none",
        rss,
        "MB",
        empty["rss"],
        ratio,
        "<= 110%",
        ratio <= 1.1,
    )


def _engine_alone() -> float:
    """Return how many messages a second the engine claims and acks by itself."""
    with folder() as path:
        _fill(path, MESSAGES)
        engine = SqliteEngine(path / "bide.db")
        start, done = time.perf_counter(), 0
        while done < MESSAGES:
            (claimed,) = engine.execute([Claim("work", BATCH, 60_000, "bench")])
            assert isinstance(claimed, Claimed)
            engine.execute([Ack("work", [Lease(m.id, claimed.token) for m in claimed.messages])])
            done += len(claimed.messages)
        rate = done / (time.perf_counter() - start)
        engine.close()
        return rate


def _fill(path: Path, count: int, **options: Any) -> None:
    with queue_in(path) as queue:
        for _ in range(count // 1_000):
            queue.put_many([BODY] * 1_000, **options)


def _worker(what: str, kind: str, rate: int = 0) -> dict[str, Any]:
    """Run a worker process on a store of its own, and return what it has measured."""
    with folder() as path:
        with queue_in(path) as queue:
            queue.counts()
            if what == "burst":
                _fill(path, MESSAGES, at=time.time() + BURST_SECONDS)
            elif what == "drain":
                _fill(path, MESSAGES)
            elif what == "idle":
                _fill(path, PENDING, delay="30d")
            command = [sys.executable, "-m", "benchmarks.worker", what, kind, str(path), str(rate)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
                if what == "lateness":
                    time.sleep(0.5)
                    _produce(queue, rate)
                output, _ = worker.communicate(timeout=120)
        found: dict[str, Any] = json.loads(output)
        return found


def _total(rate: int) -> int:
    return min(rate * 6, 8_000)


def _produce(queue: bide.Queue, rate: int) -> None:
    """Put messages due in half a second to two seconds, at an even pace: ten at a time if many."""
    begin, at_once = time.monotonic(), max(1, rate // 200)
    for number in range(0, _total(rate), at_once):
        pause = begin + number / rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        queue.put_many(
            [
                bide.NewMessage(body=BODY, delay=0.5 + (number + more) * 7919 % 1500 / 1000)
                for more in range(at_once)
            ]
        )


class Measured:
    """The app that is measured, in its own process."""

    def __init__(self, what: str, kind: str, path: Path, rate: int, due: float) -> None:
        self.what = what
        self.due = due
        self.wanted = _total(rate) if what == "lateness" else MESSAGES
        self.count = 0
        self.late: list[float] = []
        self.url = f"sqlite:///{path / 'bide.db'}"
        self.app = bide.App(self.url)
        self.over = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        if what == "lateness":
            handler: Any = self.look
        else:
            handler = self.handle if kind == "async" else self.handle_plainly
        self.app.handler("work")(handler)

    async def handle(self, body: str) -> None:
        """Do nothing."""
        self.count += 1
        if self.count >= self.wanted:
            self.over.set()

    def handle_plainly(self, body: str) -> None:
        """Do nothing, in a thread; a lost increment is made up for by the count of the queue."""
        self.late.append(0)
        if len(self.late) == self.wanted:
            self.loop.call_soon_threadsafe(self.over.set)

    async def look(self, delivery: bide.Delivery) -> None:
        """Note how late it is."""
        self.late.append(time.time() * 1000 - delivery.message.due)
        if len(self.late) >= self.wanted:
            self.over.set()

    async def measure(self) -> dict[str, Any]:
        """Work until all is done."""
        ready = asyncio.Event()
        runner = Runner(self.app, ready=ready.set)
        task = asyncio.create_task(runner.run())
        await ready.wait()
        begin, start = time.time(), time.perf_counter()
        if self.what in ("idle", "empty"):
            await asyncio.sleep(1)
            before = time.process_time()
            await asyncio.sleep(IDLE_SECONDS)
            cpu = time.process_time() - before
            runner.stop()
            await task
            return {"cpu": cpu, "rss": _resident()}
        await self.over.wait()
        last = time.time()
        runner.stop()
        await task  # the last acks are part of the work
        seconds = time.perf_counter() - start
        if self.what == "drain":
            return {"rate": self.wanted / seconds}
        if self.what == "burst":
            async with bide.AsyncQueue("work", self.url) as queue:
                assert (await queue.counts()).flow.acked == self.wanted
            return {"seconds": last - max(begin, self.due)}
        return {"late": self.late}


def _resident() -> float:
    """Return how much of this process is in memory now, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main(what: str, kind: str, path: str, rate: str) -> None:
    """Measure in this process, and print what was found."""
    logging.disable()

    due = 0.0
    if what == "burst":
        with queue_in(Path(path)) as queue:
            due = queue.peek(1)[0].due / 1000

    async def measure() -> dict[str, Any]:
        return await Measured(what, kind, Path(path), int(rate), due).measure()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(measure())))


if __name__ == "__main__":
    main(*sys.argv[1:])
