"""The stage of the demo: starts its processes, one of which is killed, and watches."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from bide.cli.demo.actors import LEASE, QUEUE, Plan
from bide.cli.demo.proof import Records
from bide.cli.output import plural
from bide.model.replies import Counts, Flow, Sizes
from bide.queue.sync import Queue

REFRESH = 0.1
GRACE = 15.0
"""How many seconds longer than planned a run may take."""


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
        self.killed = False
        self.lost = 0
        """How many orders the killed worker held."""
        self.holding = 0
        """How many of them it still holds: their leases have not lapsed."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def role(self, name: str) -> str:
        """Return the name of a process with its process id."""
        return f"{name} ({self.processes[name].pid})"

    def run(self) -> Generator[None]:
        """Run the demo; yield ten times a second, after each look at it."""
        with Queue(QUEUE, self.url, holder="stage") as queue, self._acting():
            self._note(f"{self.plan.workers} workers wait, the shop opens")
            over = False
            while not over:
                time.sleep(REFRESH)
                over = self._is_over(queue)
                self._look(queue)
                yield

    def _note(self, text: str) -> None:
        self.events.append((self.elapsed, text))

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Start all processes; at the end close their stdin, and wait until they have ended."""
        theirs, ours = os.pipe()
        try:
            with os.fdopen(theirs) as stdin, os.fdopen(ours, "wb"):
                for number in range(self.plan.workers):
                    self._start(f"worker-{number + 1}", stdin)
                self._start("shop", stdin)
                yield
            for process in self.processes.values():
                process.wait(GRACE)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def _start(self, name: str, stdin: IO[str]) -> None:
        with self._log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "bide.cli.demo.actors", name, self.folder, self.url,
                 *map(str, self.plan)],
                stdin=stdin, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is for the stage, which then stops the others
            )  # fmt: skip

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _is_over(self, queue: Queue) -> bool:
        victim = self.processes[self.plan.victim]
        for name, process in self.processes.items():
            code = process.poll()
            if code == -signal.SIGKILL and process is victim:
                continue
            if code is not None and (code or name != "shop"):
                lines = self._log(name).read_text(errors="replace").strip().splitlines()
                raise click.ClickException(
                    f"{self.role(name)} ended with exit code {code}: {lines[-1] if lines else ''}"
                )
        if self.elapsed > self.plan.seconds + self.plan.longest + LEASE + GRACE:
            self._note("it takes too long; giving up")
            return True
        if self.processes["shop"].poll() is None or queue.counts().sizes.total:
            return False
        victim.kill()  # it may never have held an order when it was to die
        victim.wait()
        return True

    def _look(self, queue: Queue) -> None:
        """Read what is new in the records and in the store."""
        victim, before = self.plan.victim, self.holding
        dies = not self.killed and self.processes[victim].poll() is not None
        if dies or before:
            self.holding = sum(message.holder == victim for message in queue.scan("leased"))
        if dies:
            self.killed, self.lost = True, self.holding
            held = plural(self.lost, "order")
            self._note(f"{self.role(victim)} was killed with -9 while it held {held}")
        elif before and not self.holding:
            self._note(f"its leases lapsed after {LEASE:g} s; the other workers got its orders")
        self.records.update(self.folder)
        self.counts = queue.counts()
