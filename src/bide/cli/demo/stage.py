"""The stage of the demo: starts its processes, has one of them killed, and watches."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from bide.cli.demo.actors import LEASE, QUEUE, Plan, Records
from bide.cli.output import plural
from bide.model.replies import Counts, Flow, Sizes
from bide.queue.sync import Queue

REFRESH = 0.1
GRACE = 15.0
"""How many seconds longer than planned a run may take."""
ENOUGH = 3
"""The number of orders with which a worker is killed; after the last rush, 1 is enough."""


@dataclass
class Actor:
    """One process."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def role(self) -> str:
        """Its name and process id."""
        return f"{self.name} ({self.process.pid})"

    @property
    def stdin(self) -> IO[bytes]:
        """What it reads: it ends when this is closed."""
        assert self.process.stdin is not None
        return self.process.stdin


class Stage:
    """One run of the demo.

    Args:
        folder: for the store and the records.
        plan: its size.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.url = f"sqlite:///{folder / 'demo.db'}"
        self.records = Records()
        self.counts = Counts(Sizes(), Flow())
        self.events: list[tuple[float, str]] = []
        self.killed: Actor | None = None
        self.lost = 0
        """How many orders the killed worker held."""
        self.holding = 0
        """How many of them it still holds: their leases have not lapsed."""
        self.workers: list[Actor] = []
        self._asked = 0
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self, watch: Callable[["Stage"], None]) -> None:
        """Run the demo, and call `watch` ten times a second."""
        pause = threading.Event()
        with Queue(QUEUE, self.url, holder="stage") as self._queue, self._actors():
            self._note(f"{self.plan.workers} workers wait, the shop opens")
            while not self._over():
                self._look()
                watch(self)
                pause.wait(REFRESH)
            self._look()
            watch(self)

    def _note(self, text: str) -> None:
        self.events.append((self.elapsed, text))

    @contextmanager
    def _actors(self) -> Iterator[None]:
        """Start all processes; at the end ask them to end, and wait until they have."""
        size = str(self.plan.orders), str(self.plan.seconds), str(self.plan.workers)
        self._started: list[Actor] = []
        try:
            for number in range(self.plan.workers):
                self.workers.append(self._start("worker", f"worker-{number + 1}"))
            self.shop = self._start("shop", "shop", *size)
            yield
            for actor in self._started:
                actor.stdin.close()
            for actor in self._started:
                actor.process.wait(GRACE)
        finally:
            for actor in self._started:
                actor.stdin.close()
                actor.process.kill()
                actor.process.wait()

    def _start(self, role: str, name: str, *size: str) -> Actor:
        log = self.folder / f"{name}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "bide.cli.demo.actors", role, name, self.folder, self.url,
                 *size],
                stdin=subprocess.PIPE, stdout=errors, stderr=errors, bufsize=0,
                start_new_session=True,  # Ctrl-C is for the stage, which then stops the others
            )  # fmt: skip
        actor = Actor(name, process, log)
        self._started.append(actor)
        return actor

    def _over(self) -> bool:
        for actor in self._started:
            code = actor.process.poll()
            if code == -signal.SIGKILL and actor is self.workers[-1]:  # as it was told to
                continue
            if code is not None and (code or actor is not self.shop):
                lines = actor.log.read_text(errors="replace").strip().splitlines()
                raise click.ClickException(
                    f"{actor.role} ended with exit code {code}: {lines[-1] if lines else ''}"
                )
        if self.elapsed > self.plan.seconds + self.plan.longest + LEASE + GRACE:
            self._note("it takes too long; giving up")
            return True
        if self.shop.process.poll() is None or self._queue.counts().sizes.total:
            return False
        if self.killed is None:  # it never held an order when it was to die
            self.workers[-1].process.kill()
            self.workers[-1].process.wait()
        return True

    def _look(self) -> None:
        """Read what is new in the journals and in the store; have a worker killed."""
        victim = self.workers[-1]
        if self.killed is None and victim.process.poll() is not None:
            self.killed = victim
            self.lost = self.holding = self._held(victim)
            held = plural(self.lost, "order")
            self._note(f"{victim.role} was killed with -9 while it held {held}")
        elif self.killed is None:
            self._ask(victim)
        elif self.holding:
            self.holding = self._held(victim)
            if not self.holding:
                self._note(f"its leases lapsed after {LEASE:g} s; the other workers got its orders")
        self.records.update(self.folder)
        self.counts = self._queue.counts()

    def _ask(self, victim: Actor) -> None:
        """Tell a worker to kill itself with full hands; after the last rush, with any order."""
        first = self.plan.seconds * 0.4 + self.plan.shortest / 2
        wanted = 0 if self.elapsed < first else ENOUGH if self.elapsed < self.plan.seconds else 1
        if wanted != self._asked:
            self._asked = wanted
            with suppress(BrokenPipeError):  # it has just died
                victim.stdin.write(str(wanted).encode())

    def _held(self, worker: Actor) -> int:
        """Return how many orders a worker holds, by the store."""
        return Counter(message.holder for message in self._queue.scan("leased"))[worker.name]
