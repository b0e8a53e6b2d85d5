"""The stage of the demo: starts its processes, one of which is killed, and watches."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from bide.cli.demo.actors import LEASE_SECONDS, QUEUE, DemoPlan
from bide.cli.output import plural
from bide.model.replies import Counts, Flow, Sizes
from bide.queue.sync import Queue

ACTOR = (sys.executable, "-W", "ignore", "-m", "bide.cli.demo.actors")
LOOK_EVERY = 0.1
"""Seconds between two looks at the store."""

GRACE_SECONDS = 15.0
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
        """The URL of the store."""
        self.counts = Counts(Sizes(), Flow())
        """The counts of the last look."""
        self.events: list[tuple[float, str]] = []
        """What has happened, with its time in seconds from the beginning."""
        self.lost = 0
        """How many orders the killed worker held."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """By name: the shop and the workers."""
        self._began = time.monotonic()
        self._deadline = plan.seconds + plan.longest + LEASE_SECONDS + GRACE_SECONDS
        """Seconds from the beginning after which a run takes too long."""

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self) -> Generator[None]:
        """Run the demo; yield ten times a second, after each look at it."""
        with Queue(QUEUE, self.url, holder="stage") as queue, self._acting():
            name = self.plan.victim
            victim = self.processes[name]
            self._note(f"{self.plan.workers} workers wait, the shop opens")
            yield from self._watch(queue, lambda: victim.poll() is not None)
            if victim.poll() is not None:  # in a very small demo it may never hold an order
                self.lost = sum(message.holder == name for message in queue.scan("leased"))
                held = plural(self.lost, "order")
                self._note(f"{name} ({victim.pid}) was killed with -9 while it held {held}")
                yield from self._watch(queue, lambda: self.counts.flow.lapsed >= self.lost)
                self._note(
                    f"its leases lapsed after {LEASE_SECONDS:g} s; the other workers got its orders"
                )
                yield from self._watch(queue, lambda: False)

    def _note(self, text: str) -> None:
        self.events.append((self.elapsed, text))

    def _watch(self, queue: Queue, happened: Callable[[], bool]) -> Generator[None]:
        """Look ten times a second until something has happened, or all is over."""
        is_over = False
        while not (is_over or happened()):
            time.sleep(LOOK_EVERY)
            self._check_processes()
            # Before the counts: what the shop has put is in them then.
            shop_has_ended = self.processes["shop"].poll() == 0
            self.counts = queue.counts()
            is_over = shop_has_ended and not self.counts.sizes.total
            yield

    def _check_processes(self) -> None:
        """Check that no process has failed or ended too early, and that time is left.

        Raises:
            click.ClickException: one has, or it takes too long.
        """
        if self.elapsed > self._deadline:
            raise click.ClickException("it takes too long: is this machine too busy?")
        expected_ends = (("shop", 0), (self.plan.victim, -signal.SIGKILL))
        for name, process in self.processes.items():
            code = process.poll()
            if code is not None and (name, code) not in expected_ends:
                raise click.ClickException(f"{name} ended with exit code {code}")

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Start all processes; at the end close their stdin; kill those that do not end then."""
        try:
            for name in (*(f"worker-{n + 1}" for n in range(self.plan.workers)), "shop"):
                self.processes[name] = subprocess.Popen(
                    [*ACTOR, name, self.folder, self.url, *map(str, self.plan)],
                    stdin=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the stage, which then stops the others
                )
            yield
        finally:
            for process in self.processes.values():
                assert process.stdin is not None
                process.stdin.close()
            try:
                with suppress(subprocess.TimeoutExpired):
                    for process in self.processes.values():
                        process.wait(GRACE_SECONDS)
            finally:
                for process in self.processes.values():  # one may hang
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
