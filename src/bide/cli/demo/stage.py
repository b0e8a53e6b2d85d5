"""The stage of the demo: starts its processes, one of which is killed, and watches."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from bide.cli.demo.actors import LEASE, QUEUE, DemoPlan
from bide.cli.output import plural
from bide.model.replies import Counts, Flow, Sizes
from bide.queue.sync import Queue

ACTOR = (sys.executable, "-W", "ignore", "-m", "bide.cli.demo.actors")
REFRESH = 0.1
GRACE = 15.0
"""How many seconds longer than planned a run may take, and a process when it is to end."""


class Stage:
    """One run of the demo.

    Args:
        folder: for the store and the records.
        plan: its size.
    """

    def __init__(self, folder: Path, plan: DemoPlan) -> None:
        self.folder = folder
        self.plan = plan
        self.url = f"sqlite:///{folder / 'demo.db'}"
        self.counts = Counts(Sizes(), Flow())
        self.events: list[tuple[float, str]] = []
        self.lost = 0
        """How many orders the killed worker held."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self) -> Generator[None]:
        """Run the demo; yield ten times a second, after each look at it."""
        with Queue(QUEUE, self.url, holder="stage") as queue, self._acting():
            name = self.plan.victim
            victim = self._processes[name]
            self._note(f"{self.plan.workers} workers wait, the shop opens")
            yield from self._watch(queue, lambda: victim.poll() is not None)
            if victim.poll() is not None:  # in a very small demo it may never hold an order
                self.lost = sum(message.holder == name for message in queue.scan("leased"))
                held = plural(self.lost, "order")
                self._note(f"{name} ({victim.pid}) was killed with -9 while it held {held}")
                yield from self._watch(queue, lambda: self.counts.flow.lapsed >= self.lost)
                self._note(f"its leases lapsed after {LEASE:g} s; the other workers got its orders")
                yield from self._watch(queue, lambda: False)

    def _note(self, text: str) -> None:
        self.events.append((self.elapsed, text))

    def _watch(self, queue: Queue, happened: Callable[[], bool]) -> Generator[None]:
        """Look ten times a second until something has happened, or all is over."""
        over = False
        while not (over or happened()):
            time.sleep(REFRESH)
            closed = self._is_closed()
            self.counts = queue.counts()
            over = closed and not self.counts.sizes.total
            yield

    def _is_closed(self) -> bool:
        """Tell whether the shop has done all; check that the others do not end before.

        Raises:
            click.ClickException: a process failed, or it takes too long.
        """
        if self.elapsed > self.plan.seconds + self.plan.longest + LEASE + GRACE:
            raise click.ClickException("it takes too long: is this machine too busy?")
        codes = {name: process.poll() for name, process in self._processes.items()}
        for name, code in codes.items():
            expected = (name, code) in (("shop", 0), (self.plan.victim, -signal.SIGKILL))
            if code is not None and not expected:
                raise click.ClickException(f"{name} ended with exit code {code}")
        return codes["shop"] == 0

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Start all processes; at the end close their stdin; kill those that do not end then."""
        try:
            for name in (*(f"worker-{n + 1}" for n in range(self.plan.workers)), "shop"):
                self._processes[name] = subprocess.Popen(
                    [*ACTOR, name, self.folder, self.url, *map(str, self.plan)],
                    stdin=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the stage, which then stops the others
                )
            yield
        finally:
            for process in self._processes.values():
                assert process.stdin is not None
                process.stdin.close()
            try:
                with suppress(subprocess.TimeoutExpired):
                    for process in self._processes.values():
                        process.wait(GRACE)
            finally:
                for process in self._processes.values():  # one may hang
                    process.kill()
                    process.wait()


def about(plan: DemoPlan) -> str:
    """Say what a plan is, in a line."""
    span = f"{plan.shortest:.2g} to {plan.longest:.2g} s"
    return f"{plan.orders:,} orders, each times out after {span} unless it is paid"


def shares(stage: Stage) -> list[tuple[str, int, str]]:
    """Return where the orders are: name, how many, style."""
    sizes, flow = stage.counts.sizes, stage.counts.flow
    return [
        ("paid", flow.cancelled, "green"),
        ("timed out", flow.acked, "red"),
        ("in hands", sizes.leased, "yellow"),
        ("waiting", sizes.delayed + sizes.ready, "cyan"),
    ]
