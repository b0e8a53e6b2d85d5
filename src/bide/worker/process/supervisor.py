"""The supervisor: keeps worker processes alive, and passes on when they are to stop or reload.

It never imports the user's code, so that a change of it, or a crash in it, cannot harm the one who
is to cope with that.
"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bide.observing.metrics import MetricsServer, registry_of
from bide.worker.process.child import BEAT, FAILED, WRONG_USAGE, Orders
from bide.worker.process.descriptors import raise_descriptor_limit
from bide.worker.process.health import HealthFile, HealthPort
from bide.worker.process.pipe import Report
from bide.worker.process.process import CommandOf, Process
from bide.worker.process.reload import Sources
from bide.worker.process.restarts import Restarts
from bide.worker.process.slot import Slot
from bide.worker.process.systemd import notify, watchdog_seconds
from bide.worker.process.totals import Totals

__all__ = ["Supervisor", "command_of"]

SILENT = 10.0
"""A process that has not been heard of for so many seconds is not well: its loop stands still."""

LEEWAY = 10.0
"""Seconds beyond the grace after which a process that does not end is killed."""

HASTE = 0.2
"""Seconds from the first to the second SIGTERM on `--reload`: together they would be one."""

AGAIN = 30.0
"""Seconds between two attempts to replace a process that is stuck."""

_log = logging.getLogger("bide.worker")


class Supervisor:
    """Runs processes until it is told to stop.

    Args:
        command_of: what a process runs.
        processes: how many.
        grace: seconds that they get to finish their work when they are stopped.
        reload: a folder; when Python files in it change, the processes are replaced.
        health_file: there while all is well.
        health_port: at which address and port to answer HTTP: 200 while all is well.
        metrics: at which address and port to serve Prometheus metrics.
        pass_fds: descriptors that the processes are to have as well.

    Raises:
        InvalidArgument: metrics are wanted, and prometheus_client is not installed.
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
    ) -> None:
        self._command_of = command_of
        self._pass_fds = tuple(pass_fds)
        self._grace = grace
        self._folder = reload
        self._file = HealthFile(health_file) if health_file is not None else None
        self.port: HealthPort | None = None
        if health_port is not None:
            self.port = HealthPort(health_port[1], self.trouble, health_port[0])
        self.places = [Slot(number + 1, self._start, self._end) for number in range(processes)]
        self._code = 0
        self.gathered = Totals()
        """What the processes have done."""
        self.metrics: MetricsServer | None = None
        if metrics is not None:
            registry = registry_of(self.gathered.counts, self.gathered)
            self.metrics = MetricsServer(registry, metrics[1], metrics[0])
        self._stopping = False
        self._nudge = asyncio.Event()
        self._reload = asyncio.Event()
        self._wish = asyncio.Event()
        self._processes: list[Process] = []
        self._begun = False  # whether any process was ever ready
        self._told_ready = False

    async def run(self) -> int:
        """Keep the processes alive until `stop`; return the exit code.

        That is the one of a process which ends by itself before any was ever ready: a mistake on
        the command line, a store that cannot be opened, or a lifespan that raises does not mend
        itself. With `reload` somebody is there who does.
        """
        raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        chores = [asyncio.create_task(self._look_after()), asyncio.create_task(self._renew())]
        if self._folder is not None:
            chores.append(asyncio.create_task(self._watch(Sources(self._folder))))
        try:
            if self.port is not None:
                await self.port.open()
            if self.metrics is not None:
                self.metrics.open()
            await asyncio.gather(*[self._keep(place) for place in self.places])
            while self._processes:  # those that were replaced may have to finish
                await asyncio.wait([process.over for process in self._processes])
        finally:
            for chore in chores:
                chore.cancel()
            if self.port is not None:
                self.port.close()
            if self.metrics is not None:
                await asyncio.to_thread(self.metrics.close)
            self.gathered.close()
            if self._file is not None:
                self._file.tell("it has ended")
        return self._code

    def stop(self) -> None:
        """Have the processes finish within the grace; at the second call hand back at once."""
        again, self._stopping = self._stopping, True
        if not again:
            notify("STOPPING=1")
        self._nudge.set()
        for process in self._processes:
            if again or not process.told:
                self._end(process)

    def reload(self) -> None:
        """Replace the processes one after the other, with whatever code is there now."""
        self._reload.set()
        self._wish.set()

    def trouble(self) -> str | None:
        """Return what is wrong, `None` if all is well."""
        if self._stopping:
            return "stopping"
        now = time.monotonic()
        for place in self.places:
            process = place.process
            if process is None or not process.ready:
                return f"process {place.number} is not ready"
            if now - process.heard > SILENT:
                return f"the event loop of process {place.number} stands still"
            if process.report.stuck:
                return f"process {place.number}: {_stuck(process)}"
        return None

    # One process after the other in one place.

    async def _keep(self, place: Slot) -> None:
        restarts = Restarts()
        while not self._stopping:
            process = await place.fill()
            self._show()
            if self._stopping:
                return
            code = process.over.result()
            if code >= 0 and not self._begun and self._folder is None:
                if code not in (WRONG_USAGE, FAILED):  # which have said what is wrong
                    _log.error("a process has ended (%s) before it was ready", process.cause())
                self._code = code or FAILED
                self.stop()
                return
            pause = restarts.pause(process.lived)
            self.gathered.restarts += 1
            _log.error(
                "process %d has died (%s) after %.1f s; another takes its place in %g s",
                place.number, process.cause(), process.lived, pause,
            )  # fmt: skip
            await self._rest(pause)

    def _start(self, number: int) -> Process:
        process = Process(number, self._command_of, self._pass_fds, self._heard)
        self._processes.append(process)
        process.over.add_done_callback(lambda _: self._ended(process))
        if self._stopping:
            self._end(process)
        return process

    def _ended(self, process: Process) -> None:
        self._processes.remove(process)
        self.gathered.ended(process)
        self._show()

    def _heard(self, process: Process, report: Report) -> None:
        self.gathered.told(process, report.store, report.tallies)
        if report.ready:
            self._begun = True
            if not self._told_ready:
                self._tell_ready()
        if report.stuck and not process.told:
            self._wish.set()
        self._show()

    def _tell_ready(self) -> None:
        """Tell systemd once all are ready."""
        if all(place.ready for place in self.places):
            self._told_ready = True
            notify(f"READY=1\nSTATUS={len(self.places)} processes at work")

    def _end(self, process: Process) -> None:
        """Ask a process to stop, and see to it that it does."""
        # One that has not begun to work has nothing to finish, and one that is told again is not
        # to: only the first gets the grace, or a handler that holds up the loop would use it up.
        finishes = process.report.ready and not process.told
        process.end(LEEWAY + (self._grace if finishes else 0))

    async def _rest(self, seconds: float) -> None:
        """Wait before the next start, unless everything ends or is renewed meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._nudge.wait()
        except TimeoutError:
            return

    # Another process in the place of one that works.

    async def _renew(self) -> None:
        """Replace processes that are to take new code, or that are stuck."""
        while not self._stopping:
            await self._wish.wait()
            self._wish.clear()
            if self._reload.is_set():
                self._reload.clear()
                _log.info("reloading")
                notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
                await self._roll()
                self._told_ready = False
                self._tell_ready()
            for place in self.places:
                await self._relieve(place)

    async def _roll(self) -> None:
        """Replace the processes one after the other, for as long as the new ones work."""
        began = time.monotonic()
        for place in self.places:
            if self._stopping:
                return
            if place.process is None:  # it is about to be started: at once, with the new code
                self._nudge.set()
                await asyncio.sleep(0)
                if self._stopping:
                    return
                self._nudge.clear()
            process = place.process
            if process is not None and process.began >= began:
                works = await place.until_ready(process, self._reload)
            else:
                works = await self._replace(place)
            if not works:
                return

    async def _relieve(self, place: Slot) -> None:
        """Replace a process whose handlers do not return."""
        process = place.process
        if process is None or not process.report.stuck or time.monotonic() < place.again:
            return
        if self._stopping:
            return
        _log.error("process %d is replaced: %s", place.number, _stuck(process))
        place.again = time.monotonic() + AGAIN
        await self._replace(place)

    async def _replace(self, place: Slot) -> bool:
        """Have another process do the work of one; return whether it does."""
        # Whoever is at the keyboard does not want to wait.
        return await place.replace(self._reload, None if self._folder is None else HASTE)

    # Chores.

    async def _look_after(self) -> None:
        """Tell those who want to know how the worker is."""
        watchdog = watchdog_seconds()
        pause = BEAT if watchdog is None else min(BEAT, watchdog)
        while True:
            trouble = self._show()
            if watchdog is not None and (trouble is None or not self._told_ready):
                notify("WATCHDOG=1")
            await asyncio.sleep(pause)

    def _show(self) -> str | None:
        """Have the health file say how things are; return what is wrong."""
        trouble = self.trouble()
        self.gathered.ready = sum(place.ready for place in self.places)
        if self._file is not None:
            self._file.tell(trouble)
        return trouble

    async def _watch(self, sources: Sources) -> None:
        while True:
            await asyncio.sleep(0.5)
            if changed := await asyncio.to_thread(sources.changed):
                _log.info("%s changed", ", ".join(path.name for path in changed))
                self.reload()


def command_of(orders: Orders) -> CommandOf:
    """Return what starts a worker process with these orders."""

    def command(line: int) -> list[str]:
        text = msgspec.json.encode(msgspec.structs.replace(orders, line=line)).decode()
        return [sys.executable, *_flags(), "-m", "bide.worker.process.child", text]

    return command


def _flags() -> Sequence[str]:
    """Return the flags of this interpreter that a child is to have as well."""
    return [f"-W{option}" for option in sys.warnoptions]


def _stuck(process: Process) -> str:
    queues = ", ".join(process.report.stuck)
    return f"all places of {queues} are taken by handlers that do not return"
