"""The supervisor: keeps worker processes alive, and passes on when they are to stop or reload.

It never imports the user's code, so that a change of it, or a crash in it, cannot harm the one who
is to cope with that.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from bide.telemetry.metrics import MetricsServer, registry_of
from bide.worker.child import BEAT, FAILED, WRONG_USAGE, Orders
from bide.worker.gathered import Gathered
from bide.worker.health import HealthFile, HealthPort
from bide.worker.line import Report, listen
from bide.worker.reload import Sources
from bide.worker.restarts import Restarts
from bide.worker.systemd import notify, watchdog_seconds

__all__ = ["Place", "Supervisor", "command_of"]

SILENT = 10.0
"""A process that has not been heard of for so many seconds is not well: its loop stands still."""

LEEWAY = 10.0
"""Seconds beyond the grace after which a process that does not end is killed."""

LAST_WORD = 1.0
"""Seconds to hear what a process that has ended said last; a child of its own may hold the line."""

HASTE = 0.2
"""Seconds from the first to the second SIGTERM on `--reload`: together they would be one."""

_log = logging.getLogger("bide.worker")

CommandOf = Callable[[int], list[str]]
"""From the descriptor of the child's end of its line to what is to be run."""


class Place:
    """One of the processes, and who takes its place when it dies."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.ready = False
        self.heard = 0.0
        self.wanted = True
        """Whether the process was not told to stop."""


class Supervisor:
    """Runs processes until it is told to stop.

    Args:
        command_of: what a process runs.
        processes: how many.
        grace: seconds that they get to finish their work when they are stopped.
        reload: a folder; when Python files in it change, the processes are replaced.
        health_file: there while all is well.
        health_port: answers HTTP: 200 while all is well.
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
        health_port: int | None = None,
        metrics: tuple[str, int] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._command_of = command_of
        self._pass_fds = tuple(pass_fds)
        self._grace = grace
        self._folder = reload
        self._file = HealthFile(health_file) if health_file is not None else None
        self.port = HealthPort(health_port, self.trouble) if health_port is not None else None
        self.places = [Place(number + 1) for number in range(processes)]
        self._code = 0
        self.gathered = Gathered()
        """What the processes have done."""
        self.metrics: MetricsServer | None = None
        if metrics is not None:
            registry = registry_of(self.gathered.counts, self.gathered)
            self.metrics = MetricsServer(registry, metrics[1], metrics[0])
        self._stopping = False
        self._nudge = asyncio.Event()
        self._reload = asyncio.Event()
        self._was_ready = False

    async def run(self) -> int:
        """Keep the processes alive until `stop`; return the exit code.

        That is the one of a process which ends with 2 or 3 before any was ever ready: a mistake on
        the command line, or a store that cannot be opened, does not mend itself.
        """
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
        if not self._stopping:
            notify("STOPPING=1")
        self._stopping = True
        self._nudge.set()
        for place in self.places:
            self._end(place)

    def reload(self) -> None:
        """Replace the processes one after the other, with whatever code is there now."""
        self._reload.set()

    def trouble(self) -> str | None:
        """Return what is wrong, `None` if all is well."""
        if self._stopping:
            return "stopping"
        now = time.monotonic()
        for place in self.places:
            if not place.ready:
                return f"process {place.number} is not ready"
            if now - place.heard > SILENT:
                return f"the event loop of process {place.number} stands still"
        return None

    # One process after the other in one place.

    async def _keep(self, place: Place) -> None:
        restarts = Restarts()
        while not self._stopping:
            began = time.monotonic()
            code = await self._live(place)
            lived = time.monotonic() - began
            if self._stopping:
                return
            if not place.wanted:  # replaced on purpose
                place.wanted = True
                continue
            if code in (WRONG_USAGE, FAILED) and not self._was_ready and self._folder is None:
                self._code = code
                self.stop()
                return
            pause = restarts.pause(lived)
            self.gathered.restarts += 1
            _log.error(
                "process %d has died (%s) after %.1f s; another takes its place in %g s",
                place.number, _cause(code), lived, pause,
            )  # fmt: skip
            await self._rest(pause)

    async def _live(self, place: Place) -> int:
        """Start a process, and wait for its end."""
        ours, theirs = socket.socketpair()
        with theirs:
            place.process = process = await asyncio.create_subprocess_exec(
                *self._command_of(theirs.fileno()), pass_fds=(*self._pass_fds, theirs.fileno()),
                process_group=0,  # so that Ctrl-C comes here alone
            )  # fmt: skip
        if self._stopping:
            self._end(place)
        listening = asyncio.create_task(listen(ours, partial(self._heard, place)))
        try:
            code = await process.wait()
            await asyncio.wait([listening], timeout=LAST_WORD)
            return code
        finally:
            listening.cancel()
            place.ready, place.process = False, None
            self.gathered.ended(place)
            self._show()

    def _heard(self, place: Place, report: Report) -> None:
        place.heard = time.monotonic()
        self.gathered.told(place, report.store, report.tallies)
        if report.ready and not place.ready:
            place.ready = True
            self._show()
            if all(one.ready for one in self.places):
                self._was_ready = True
                notify(f"READY=1\nSTATUS={len(self.places)} processes at work")

    def _end(self, place: Place) -> None:
        """Ask a process to stop, and see to it that it does."""
        process = place.process
        if process is not None and process.returncode is None:
            process.terminate()
            patience = self._grace + LEEWAY
            asyncio.get_running_loop().call_later(patience, _kill, process)

    async def _rest(self, seconds: float) -> None:
        """Wait before the next start, unless everything ends or is renewed meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._nudge.wait()
        except TimeoutError:
            return

    # Chores.

    async def _look_after(self) -> None:
        """Tell those who want to know how the worker is."""
        watchdog = watchdog_seconds()
        pause = BEAT if watchdog is None else min(BEAT, watchdog)
        while True:
            trouble = self._show()
            if watchdog is not None and (trouble is None or not self._was_ready):
                notify("WATCHDOG=1")
            await asyncio.sleep(pause)

    def _show(self) -> str | None:
        """Have the health file say how things are; return what is wrong."""
        trouble = self.trouble()
        self.gathered.ready = sum(place.ready for place in self.places)
        if self._file is not None:
            self._file.tell(trouble)
        return trouble

    async def _renew(self) -> None:
        """Replace the processes whenever that was asked for, one after the other."""
        while True:
            await self._reload.wait()
            self._reload.clear()
            _log.info("reloading")
            notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            for place in self.places:
                process = place.process
                if process is None:  # it is about to be started: at once, with the new code
                    self._nudge.set()
                    await asyncio.sleep(0)
                    if not self._stopping:
                        self._nudge.clear()
                    continue
                place.wanted = False
                self._end(place)
                if self._folder is not None:  # whoever is at the keyboard does not want to wait
                    await asyncio.sleep(HASTE)
                    self._end(place)
                await process.wait()

    async def _watch(self, sources: Sources) -> None:
        while True:
            await asyncio.sleep(0.5)
            if changed := await asyncio.to_thread(sources.changed):
                _log.info("%s changed", ", ".join(path.name for path in changed))
                self._reload.set()


def command_of(orders: Orders) -> CommandOf:
    """Return what starts a worker process with these orders."""

    def command(line: int) -> list[str]:
        text = msgspec.json.encode(msgspec.structs.replace(orders, line=line)).decode()
        return [sys.executable, *_flags(), "-m", "bide.worker.child", text]

    return command


def _flags() -> Sequence[str]:
    """Return the flags of this interpreter that a child is to have as well."""
    return [f"-W{option}" for option in sys.warnoptions]


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        _log.error("process %d does not end; it is killed", process.pid)
        process.kill()
