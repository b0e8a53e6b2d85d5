"""The stage of the demo: starts its processes, kills one of them, and watches."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from bide.cli.demo.journal import Records, Tail
from bide.cli.demo.plan import LEASE, QUEUE, Plan
from bide.model.replies import Counts
from bide.queue.sync import Queue

__all__ = ["Actor", "Stage"]

REFRESH = 0.1
GRACE = 15.0
"""How many seconds longer than planned a run may take."""
ENOUGH = 3
"""So many orders in its hands make a worker worth killing, while there is still a rush to come."""


@dataclass
class Actor:
    """One process."""

    name: str
    process: "subprocess.Popen[bytes]"
    tail: Tail
    log: Path
    killed: bool = False
    handled: int = 0
    lateness: list[int] = field(default_factory=list)

    @property
    def role(self) -> str:
        """What it does, and as which process."""
        return f"{self.name} ({self.process.pid})"

    def leave(self) -> None:
        """Ask it to end: it does so when its stdin closes."""
        assert self.process.stdin is not None
        self.process.stdin.close()


class Stage:
    """One run of the demo.

    Args:
        folder: for the store and the records.
        plan: what is to happen.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.url = f"sqlite:///{folder / 'demo.db'}"
        self.records = Records()
        self.counts: Counts | None = None
        self.events: list[tuple[float, str]] = []
        self.holding: dict[str, int] = {}
        self.lost = 0
        """How many orders the killed worker had in its hands."""
        self.victim: Actor | None = None
        self.workers: list[Actor] = []
        self._started: list[Actor] = []
        self._rushes: list[int] = []
        self._recovered = False
        self._began = time.monotonic()
        self._patience = threading.Event()  # never set: what waits here waits for time alone

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self, watch: Callable[["Stage"], None]) -> None:
        """Play it, and call `watch` ten times a second."""
        with Queue(QUEUE, self.url, holder="stage") as self._queue, self._actors():
            self.note(f"{self.plan.workers} workers wait, the shop opens")
            while not self._over():
                self._look()
                watch(self)
                if self.victim is None:
                    self._hunt(time.monotonic() + REFRESH)
                else:
                    self._patience.wait(REFRESH)
            self._look()
            watch(self)

    def note(self, text: str) -> None:
        """Remember what has happened."""
        self.events.append((self.elapsed, text))

    @contextmanager
    def _actors(self) -> Iterator[None]:
        """Start everybody; in the end ask them to leave, and see to it that they have."""
        size = str(self.plan.orders), str(self.plan.seconds), str(self.plan.workers)
        try:
            for number in range(self.plan.workers):
                self.workers.append(self._start("worker", f"worker-{number + 1}"))
            self.shop = self._start("shop", "shop", *size)
            yield
            for actor in self._started:
                actor.leave()
            for actor in self._started:
                actor.process.wait(GRACE)
        finally:
            for actor in self._started:
                actor.leave()
                actor.process.kill()
                actor.process.wait()

    def _start(self, role: str, name: str, *size: str) -> Actor:
        log = self.folder / f"{name}.log"
        arguments = [role, name, str(self.folder), self.url, *size]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "bide.cli.demo.processes", *arguments],
                stdin=subprocess.PIPE, stdout=errors, stderr=errors,
                start_new_session=True,  # Ctrl-C is for the stage, which then stops the others
            )  # fmt: skip
        actor = Actor(name, process, Tail(self.folder / f"{name}.jsonl"), log)
        self._started.append(actor)
        return actor

    def _over(self) -> bool:
        for actor in self._started:
            code = actor.process.poll()
            if code is not None and not actor.killed and (code or actor is not self.shop):
                told = actor.log.read_text(errors="replace").strip().splitlines()
                raise click.ClickException(
                    f"{actor.role} ended with exit code {code}: {told[-1] if told else ''}"
                )
        if self.elapsed > self.plan.seconds + self.plan.longest + LEASE + GRACE:
            self.note("it takes too long; giving up")
            return True
        done = self.shop.process.poll() is not None and self._queue.counts().sizes.total == 0
        if done and self.victim is None:  # nobody was ever met with full hands
            self._finish(self.workers[-1], 0)
        return done

    def _look(self) -> None:
        """Read what is new in the journals and in the store."""
        for row in self.shop.tail.rows():
            self.records.add(self.shop.name, row)
            if row[-1] == "rush" and int(row[2]) not in self._rushes:
                self._rushes.append(int(row[2]))
        for worker in self.workers:
            seen = len(self.records.handled)
            for row in worker.tail.rows():
                self.records.add(worker.name, row)
            new = self.records.handled[seen:]
            worker.handled += len(new)
            worker.lateness += [handling.late for handling in new if handling.attempt == 1]
        self.counts = self._queue.counts()
        if self.victim is not None and not self._recovered:
            self._see_recovery()

    def _see_recovery(self) -> None:
        assert self.counts is not None
        lapsed = self.counts.flow.lapsed
        self.holding = self._held()
        assert self.victim is not None
        if lapsed >= self.lost and self.victim.name not in self.holding:
            self._recovered = True
            self.note(f"its leases lapsed after {LEASE:g} s; its {self.lost} went to the others")

    def _held(self) -> dict[str, int]:
        """Return how many orders each worker holds, by the store."""
        held: dict[str, int] = {}
        for message in self._queue.scan("leased"):
            if message.holder is not None:
                held[message.holder] = held.get(message.holder, 0) + 1
        return held

    def _hunt(self, until: float) -> None:
        """Look for a worker with its hands full, and kill it."""
        if self.elapsed < self.plan.seconds * 0.4 + self.plan.shortest / 2:
            self._patience.wait(max(0.0, until - time.monotonic()))
            return
        while self.victim is None and (left := until - time.monotonic()) > 0:
            now = time.time_ns() // 1_000_000
            rush = min((due - now for due in self._rushes if due - now > -200), default=None)
            if rush is not None and rush > 20:  # the next one is still to come
                self._patience.wait(min(left, (rush - 10) / 1000))
                continue
            held = self._held()
            name = max(held, key=held.__getitem__, default=None)
            last = self.elapsed > self.plan.seconds
            if name is not None and (held[name] >= ENOUGH or last):
                self._kill(next(worker for worker in self.workers if worker.name == name), last)
            self._patience.wait(0.001)

    def _kill(self, worker: Actor, last: bool) -> None:
        """Kill a worker that holds orders: first let it stand still, then see that it does."""
        worker.process.send_signal(signal.SIGSTOP)
        held = self._held().get(worker.name, 0)
        if held < ENOUGH and not (last and held):
            worker.process.send_signal(signal.SIGCONT)
            return
        self._finish(worker, held)

    def _finish(self, worker: Actor, held: int) -> None:
        worker.process.kill()
        worker.process.wait()
        worker.killed = True
        self.victim, self.lost = worker, held
        self.note(f"{worker.role} was killed with -9, {held} orders in its hands")
