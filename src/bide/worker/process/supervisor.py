"""The supervisor: starts worker processes, replaces dead and stuck ones, stops and reloads them.

It never imports the user's code, so neither a change of that code nor a crash in it harms it.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bide.consuming.graceful_stop import first_of
from bide.model.errors import BideError
from bide.observing.metrics import MetricsServer, registry_of
from bide.worker.process.child import BEAT, Orders
from bide.worker.process.health import HealthFile, notify, serve_health, watchdog_seconds
from bide.worker.process.processes import (
    FAILED,
    WRONG_USAGE,
    CommandOf,
    Process,
    Report,
    Slot,
)
from bide.worker.process.reload import Sources
from bide.worker.process.totals import Totals, take_requests


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one; child processes inherit it.

    The soft limit is 1,024 on most systems, for programs that use select(); bide does not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a lower limit than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


SILENT = 10.0
"""Seconds without a report after which the event loop of a process counts as blocked."""

LEEWAY = 10.0
"""Seconds beyond the grace after which a process that does not end is killed."""

FIRST = 2.0
"""Seconds that the other processes wait for the first to be ready: an error that all of them would
have is printed once."""

LOOK = 5.0
"""Seconds between two looks for requests to replace a process."""

AGAIN = 30.0
"""Seconds between two attempts to replace a process that is stuck."""

_log = logging.getLogger("bide.worker")


class Supervisor:
    """Runs worker processes until it is stopped.

    Args:
        command_of: returns the command line of a process.
        processes: how many.
        grace: seconds that handlers get to finish when the processes are stopped.
        reload: a folder; when Python files in it change, the processes are replaced.
        health_file: exists while all is well.
        health_port: at which address and port to answer HTTP: 200 while all is well.
        metrics: at which address and port to serve Prometheus metrics.
        pass_fds: descriptors that the processes inherit.
        stopped: called when the processes are to end.

    Raises:
        InvalidArgument: `metrics` is given, and prometheus_client is not installed.
    """

    def __init__(
        self,
        command_of: CommandOf,
        processes: int = 1,
        *,
        grace: float = 30.0,
        reload: Path | None = None,
        health_file: Path | None = None,
        health_port: tuple[str, int] | None = None,
        metrics: tuple[str, int] | None = None,
        pass_fds: Sequence[int] = (),
        stopped: Callable[[], None] = lambda: None,
    ) -> None:
        self._command_of = command_of
        self._stopped = stopped
        self._pass_fds = tuple(pass_fds)
        self._grace = grace
        self._folder = reload
        self._file = HealthFile(health_file) if health_file is not None else None
        self._health_port = health_port
        self.slots = [Slot(number + 1, self._start, self._end) for number in range(processes)]
        self._code = 0
        self.totals = Totals()
        """What the processes have done."""
        self.metrics: MetricsServer | None = None
        if metrics is not None:
            registry = registry_of(self.totals.counts, more=self.totals.metrics)
            self.metrics = MetricsServer(registry, metrics[1], metrics[0])
        self._stopping = asyncio.Event()
        self._reload = asyncio.Event()
        self._processes: list[Process] = []
        self._begun = asyncio.Event()  # set once any process was ready
        self._notified_ready = False

    async def run(self) -> int:
        """Keep the processes alive until `stop`; return the exit code.

        If a process ends before any was ready, the supervisor ends with its exit code: the command
        line, the store or the lifespan is wrong, and a restart would not help. With `reload` it
        waits for a change of the code instead.
        """
        raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        hang_up = self._hang_up if _ends_with_terminal() else self.reload
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        chores = [self._look_after(), self._renew(), self._hear_requests()]
        if self._folder is not None:
            chores.append(self._watch(Sources(self._folder)))
        beside = [asyncio.create_task(chore) for chore in chores]
        health: asyncio.Server | None = None
        try:
            if self._health_port is not None:
                health = await serve_health(*self._health_port, self.trouble)
            if self.metrics is not None:
                self.metrics.open()
            await asyncio.gather(*[self._keep(slot) for slot in self.slots])
            while self._processes:  # replaced ones may still finish their deliveries
                await asyncio.wait([process.over for process in self._processes])
        finally:
            for task in beside:
                task.cancel()
            if health is not None:
                health.close()
            if self.metrics is not None:
                await asyncio.to_thread(self.metrics.close)
            self.totals.close()
            if self._file is not None:
                self._file.update("it has ended")
        return self._code

    def stop(self) -> None:
        """Let the processes finish within the grace; a second call releases their messages."""
        again = self._stopping.is_set()
        self._stopping.set()
        if not again:
            notify("STOPPING=1")
            self._stopped()
        for process in self._processes:
            if again or not process.end_requests:
                self._end(process)

    def _hang_up(self) -> None:
        """Stop. When a terminal is closed, both the shell and the system send the signal."""
        if not self._stopping.is_set():
            _log.info("the terminal was closed (SIGHUP): stopping")
            self.stop()

    def reload(self) -> None:
        """Replace the processes one after the other, so that they load the code as it is now."""
        self._reload.set()

    def trouble(self) -> str | None:
        """Return what is wrong; `None` if all is well."""
        if self._stopping.is_set():
            return "stopping"
        now = time.monotonic()
        for slot in self.slots:
            process = slot.process
            if process is None or not process.ready:
                return f"process {slot.number} is not ready"
            if now - process.reported > SILENT:
                return f"the event loop of process {slot.number} is blocked"
            if process.report.stuck:
                return f"process {slot.number}: {_stuck(process)}"
        return None

    # One process after the other in one slot.

    async def _keep(self, slot: Slot) -> None:
        if slot.number > 1:
            await first_of(self._begun.wait(), self._stopping.wait(), asyncio.sleep(FIRST))
        while not self._stopping.is_set():
            process = await slot.fill()
            if self._stopping.is_set():
                return
            code = process.over.result()
            if code >= 0 and not self._begun.is_set() and self._folder is None:
                if code not in (WRONG_USAGE, FAILED):  # the process has printed the cause
                    _log.error("a process has ended (%s) before it was ready", process.cause())
                self._code = code or FAILED
                self.stop()
                return
            lived = time.monotonic() - process.began
            pause = slot.pause(lived)
            self.totals.restarts += 1
            _log.error(
                "process %d has died (%s) after %.1f s; another takes its place in %g s",
                slot.number, process.cause(), lived, pause,
            )  # fmt: skip
            await first_of(self._stopping.wait(), asyncio.sleep(pause))

    def _start(self, number: int) -> Process:
        process = Process(number, self._command_of, self._pass_fds, self._on_report)
        self._processes.append(process)
        process.over.add_done_callback(lambda _: self._ended(process))
        if self._stopping.is_set():
            self._end(process)
        return process

    def _ended(self, process: Process) -> None:
        self._processes.remove(process)
        self.totals.ended(process)

    def _on_report(self, process: Process, report: Report) -> None:
        self.totals.report(process, report.store, report.tallies)
        if report.ready:
            self._begun.set()

    def _end(self, process: Process) -> None:
        """Ask a process to end, and kill it if it does not."""
        # Only the first request to a working process allows for the grace: at a second one it must
        # end at once, even if a handler blocks its loop.
        finishes = process.report.ready and not process.end_requests
        process.end(LEEWAY + (self._grace if finishes else 0))

    # Another process in the slot of one that works.

    async def _renew(self) -> None:
        """Replace processes on a reload, and those that are stuck."""
        while not self._stopping.is_set():
            await first_of(self._reload.wait(), asyncio.sleep(BEAT))
            if self._reload.is_set():
                self._reload.clear()
                _log.info("reloading")
                notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
                await self._roll()
                self._notified_ready = False
            for slot in self.slots:
                await self._relieve(slot)

    async def _roll(self) -> None:
        """Replace the processes one after the other, for as long as the new ones work."""
        for slot in self.slots:
            if self._stopping.is_set() or not await self._replace(slot):
                return

    async def _relieve(self, slot: Slot) -> None:
        """Replace a process whose handlers do not return."""
        process = slot.process
        actor, slot.asked_by = slot.asked_by, ""
        if process is None or self._stopping.is_set():
            return
        if actor:
            _log.warning("process %d is replaced: %s asked for it", slot.number, actor)
        elif process.report.stuck and time.monotonic() >= slot.again:
            _log.error("process %d is replaced: %s", slot.number, _stuck(process))
        else:
            return
        slot.again = time.monotonic() + AGAIN
        await self._replace(slot)

    async def _replace(self, slot: Slot) -> bool:
        """Replace a process; return whether the new one works."""
        # A user who edits code does not want to wait for the grace.
        return await slot.replace(self._reload, hurry=self._folder is not None)

    # Chores.

    async def _hear_requests(self) -> None:
        """Replace processes that operators ask to replace."""
        host = socket.gethostname()
        while True:
            await asyncio.sleep(LOOK)
            named = {f"{host}:{one.pid}": one for one in self._processes if one.pid is not None}
            if not named or (lane := self.totals.lane()) is None:
                continue
            try:
                taken = await take_requests(lane, list(named))
            except (BideError, TimeoutError) as error:  # the processes report a store that is away
                _log.debug("requests to replace processes cannot be looked for: %s", error)
                continue
            for holder, actor in taken.items():
                slots = [slot for slot in self.slots if slot.process is named[holder]]
                if slots:
                    slots[0].asked_by = actor
                else:  # it is ending already: now it must end at once
                    self._end(named[holder])

    async def _look_after(self) -> None:
        """Keep the health file up to date, tell systemd once all are ready, feed its watchdog."""
        watchdog = watchdog_seconds()
        pause = BEAT if watchdog is None else min(BEAT, watchdog)
        while True:
            trouble = self.trouble()
            if self._file is not None:
                self._file.update(trouble)
            self.totals.ready = sum(slot.ready for slot in self.slots)
            if not self._notified_ready and self.totals.ready == len(self.slots):
                self._notified_ready = True
                notify(f"READY=1\nSTATUS=processes at work: {len(self.slots)}")
            if watchdog is not None and (trouble is None or not self._notified_ready):
                notify("WATCHDOG=1")
            await asyncio.sleep(pause)

    async def _watch(self, sources: Sources) -> None:
        """Reload whenever a file has changed."""
        while True:
            await asyncio.sleep(0.5)
            if changed := await asyncio.to_thread(sources.changed):
                _log.info("%s changed", ", ".join(path.name for path in changed))
                self.reload()


def _ends_with_terminal() -> bool:
    """Tell whether SIGHUP means that the terminal was closed: if one is used, except by nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    return any(os.isatty(number) for number in (0, 1, 2))


def command_of(orders: Orders) -> CommandOf:
    """Return the function that makes the command line of a worker process with these orders."""

    def command(pipe: int) -> list[str]:
        text = msgspec.json.encode(msgspec.structs.replace(orders, pipe=pipe)).decode()
        flags = [f"-W{option}" for option in sys.warnoptions]  # which a child needs as well
        return [sys.executable, *flags, "-m", "bide.worker.process.child", text]

    return command


def _stuck(process: Process) -> str:
    queues = ", ".join(process.report.stuck)
    return f"all places of {queues} are taken by handlers that do not return"
