"""The supervisor: starts worker processes, replaces dead and stuck ones, stops and reloads them.

It never imports the user's code, so neither a change of that code nor a crash in it harms it.
"""

import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from bide.lane.steps import arun_steps
from bide.logs import logger
from bide.model.backoff import Backoff
from bide.model.errors import BideError, InvalidArgument
from bide.model.limits import MAX_ACTOR
from bide.observing.exporting import exporting
from bide.observing.families import WORKER
from bide.observing.logs import printable
from bide.observing.workers import take_requests
from bide.tasks import background, cancel, first_of
from bide.worker.process.health import notify, serve_health, update_health_file, watchdog_seconds
from bide.worker.process.orphans import Orphans
from bide.worker.process.processes import BEAT, FAILED, WRONG_USAGE, Process
from bide.worker.process.reload import Sources
from bide.worker.process.totals import Totals


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one; child processes inherit it.

    The soft limit is 1,024 on most systems, for programs that use select(); bide does not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a lower limit than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


SILENT = 10.0
"""Seconds without a report after which the event loop of a process counts as blocked."""

RELOAD_POLL = 0.5
"""Seconds between two looks whether the code has changed."""

LEEWAY = 10.0
"""Seconds beyond the grace after which a process that does not end is killed."""

FIRST = 2.0
"""Seconds that the other processes wait for the first to be ready: an error that all of them would
have is printed once."""

PATIENCE = 10.0
"""Seconds that a store gets to answer."""

POLL = 5.0
"""Seconds between two polls for requests to replace a process."""

AGAIN = 30.0
"""Seconds between two attempts to replace a process that is stuck."""

SLOW = 10.0
"""Seconds after which a warning says that a new process is not ready yet."""

STEADY = 30.0
"""Seconds after which the death of a process is not part of a crash loop."""

PAUSES = Backoff(first="500ms", factor=2, ceiling="30s", jitter=0)
"""The delays before a dead process is replaced."""

_log = logger("bide.worker")


@dataclass
class ProcessSlot:
    """The place of one process. Times are those of `time.monotonic`."""

    number: int
    """From 1, for the log."""
    process: Process | None = None
    """The process at work. One that was replaced may still finish its deliveries."""
    fresh: Process | None = None
    """A process that replaces it as soon as it is ready."""
    wanted: bool = False
    """Whether to start a process that replaces the one at work."""
    start_at: float = 0.0
    """When a process may be started after a death."""
    again: float = 0.0
    """When the next attempt to replace a stuck process may begin."""
    warn_at: float = 0.0
    """When a warning says that the process which was started last is not ready yet."""
    deaths: int = 0
    """How many processes in a row have died early."""

    def pause(self, lived: float) -> float:
        """Return how many seconds to wait before a process that has died is replaced.

        The delay grows while processes die within `STEADY` seconds.

        Args:
            lived: for how many seconds it ran.
        """
        self.deaths = 0 if lived >= STEADY else self.deaths + 1
        return PAUSES.delay(self.deaths, 0.5) / 1000  # the chance is for a jitter, which is 0


@dataclass(eq=False)
class Supervisor:
    """Runs worker processes until it is stopped.

    Raises:
        InvalidArgument: there is no folder for the health file.
    """

    command: Sequence[str]
    """The command line of a process; see `Process`."""
    processes: int = 1
    """How many."""
    _: KW_ONLY
    grace: float = 30.0
    """Seconds that handlers get to finish when the processes are stopped."""
    folder: Path | None = None
    """When Python files in it change, the processes are replaced."""
    health_file: Path | None = None
    """Exists while all is well."""
    health_port: tuple[str, int] | None = None
    """At which address and port to answer HTTP: 200 while all is well; at /live, while no process
    hangs."""
    metrics: tuple[str, int] | None = None
    """At which address and port to serve Prometheus metrics."""
    exports: bool = False
    """Whether to export the metrics of all processes by OpenTelemetry."""
    pass_fds: Sequence[int] = ()
    """Descriptors that the processes inherit."""
    begun: Callable[[], None] = lambda: None
    """Called before the first process begins, once signals stop the supervisor in good order."""
    stopped: Callable[[], None] = lambda: None
    """Called when the processes are to end."""

    def __post_init__(self) -> None:
        file = self.health_file
        if file is not None and not (folder := file.absolute().parent).is_dir():
            raise InvalidArgument(f"there is no folder {folder} for {file.name}")
        self.slots = [ProcessSlot(number + 1) for number in range(self.processes)]
        self._exit_code = 0
        self.totals = Totals()
        """What the processes have done."""
        self._stopping = False
        self._processes = self.totals.living
        """All that have not ended: those at work, those that replace them, those that finish."""
        self._news = asyncio.Event()
        """Set when the state of a process has changed, or what is wanted of it."""
        self._began_at = time.monotonic()
        self._has_been_ready = False
        """Whether any process was ready so far."""
        self._notified_ready = False
        """Whether systemd was told that all are ready, since the last reload."""

    async def run(self) -> int:
        """Keep the processes alive until `stop`; return the exit code.

        If a process ends before any was ready, the supervisor ends with its exit code: the command
        line, the store or the lifespan is wrong, and a restart would not help. With a `folder` it
        waits for a change of the code instead.

        Raises:
            InvalidArgument: a port is taken or not allowed; or `metrics` is given, and
                prometheus_client is not installed.
        """
        raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self.stop)
        hang_up = self._hang_up if _ends_with_terminal() else self.reload
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        self.begun()
        chores = [background("bide-stop-requests", self._hear_requests)]
        if self.folder is not None:
            watch = partial(self._watch, Sources(self.folder))
            chores.append(background("bide-reload", watch))
        async with AsyncExitStack() as opened:
            opened.callback(self.totals.close)
            try:
                if self.health_port is not None:
                    server = await serve_health(
                        *self.health_port, self.trouble, self.hang, self.notices
                    )
                    opened.callback(server.close)
                if self.metrics is not None:
                    # Here: the package may be missing.
                    from bide.observing.metrics import MetricsServer, registry_of

                    registry = registry_of(
                        self.totals.counts, more=self.totals.metrics, lost=self.totals.lost
                    )
                    host, port = self.metrics
                    opened.enter_context(MetricsServer(registry, port, host))
                if self.exports:
                    exports = exporting(
                        self.totals.counts, WORKER, self.totals.metrics, self.totals.lost
                    )
                    await opened.enter_async_context(exports)
                await self._tend_until_stopped()
            finally:
                await cancel(chores)
                if self.health_file is not None:
                    update_health_file(self.health_file, "it has ended")
        return self._exit_code

    async def _tend_until_stopped(self) -> None:
        """Tend the processes once a beat, and at any news, until the last one has ended."""
        watchdog = watchdog_seconds()
        pause = BEAT if watchdog is None else min(BEAT, watchdog)
        # Only the first process of a system or a container gets the orphans of others.
        orphans = Orphans() if os.getpid() == 1 else None
        while self._processes or not self._stopping:
            self._news.clear()
            if any(process.report.ready for process in self._processes):
                self._has_been_ready = True
            for slot in self.slots:
                self._tend(slot)
            if orphans is not None:
                orphans.reap(time.monotonic())
            self.publish_health(feeds_watchdog=watchdog is not None)
            await first_of(self._news.wait(), asyncio.sleep(pause))

    def stop(self) -> None:
        """Let the processes finish within the grace; a second call releases their messages."""
        is_second, self._stopping = self._stopping, True
        if not is_second:
            notify("STOPPING=1")
            self.stopped()
        for process in self._processes:
            # A process that was replaced has been asked already: another request would hurry it.
            if is_second or not process.end_requests:
                self._end(process)
        self._news.set()

    def _hang_up(self) -> None:
        """Stop. When a terminal is closed, both the shell and the system send the signal."""
        if not self._stopping:
            _log.info("the terminal was closed (SIGHUP): stopping")
            self.stop()

    def reload(self) -> None:
        """Replace the processes one after the other, so that they load the code as it is now."""
        if self._stopping:
            return
        _log.info("reloading")
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        self._notified_ready = False
        for slot in self.slots:
            slot.wanted, slot.start_at = True, 0.0
            if slot.fresh is not None:  # it may have the code as it was before
                self._end(slot.fresh)
        self._news.set()

    def trouble(self) -> str | None:
        """Return why not all processes work, for probes of readiness; `None` if all is well."""
        if self._stopping:
            return "stopping"
        for slot in self.slots:
            if slot.process is None or not slot.process.ready:
                return f"process {slot.number} is not ready"
        return self.hang()

    def hang(self) -> str | None:
        """Return which process hangs, for the watchdog and probes of liveness; `None` if none does.

        Only this is a reason to kill the worker with all its processes. An empty slot, a process
        that starts and a store that is away are none: the supervisor tries again, and the other
        processes work meanwhile.
        """
        now = time.monotonic()
        for slot in self.slots:
            process = slot.process
            if process is None or not process.ready:
                continue
            if now - process.reported > SILENT:
                return f"the event loop of process {slot.number} is blocked"
            if process.report.stuck:
                return f"process {slot.number}: {_stuck(process)}"
        return None

    def notices(self) -> list[str]:
        """Return what an operator should look at although messages are handled."""
        lost_notifications = [
            f"process {slot.number}: notifications are lost, so claims poll the store"
            for slot in self.slots
            if slot.process is not None and slot.process.report.notifications_lost
        ]
        restarts = [f"restarts of {name}: {count}" for name, count in self.totals.threads().items()]
        return lost_notifications + restarts

    # The life of processes.

    def _tend(self, slot: ProcessSlot) -> None:
        """Do what a slot needs now: note a death, start a process, or replace the one at work."""
        if slot.process is not None and slot.process.over.done():
            dead, slot.process = slot.process, None
            self._died(slot, dead)
        if slot.fresh is not None:
            self._tend_fresh(slot, slot.fresh)
        for process in (slot.process, slot.fresh):
            if process is not None and not process.ready:
                _warn_if_slow(slot, process)
        if not self._stopping and slot.fresh is None:
            self._fill(slot)

    def _tend_fresh(self, slot: ProcessSlot, fresh: Process) -> None:
        """Put a fresh process to work once it is ready, or note its death."""
        if fresh.over.done():
            slot.fresh = None
            if not fresh.end_requests:
                self._failed(fresh)
        elif fresh.ready and not fresh.end_requests:
            replaced = slot.process
            slot.process, slot.fresh = fresh, None
            if replaced is not None:
                self._end(replaced)
                if self.folder is not None:  # who edits code does not want to wait for the grace
                    self._end(replaced)

    def _fill(self, slot: ProcessSlot) -> None:
        """Start the process of an empty slot, or one that will replace the process at work."""
        now = time.monotonic()
        if slot.process is None:
            may_start = slot.number == 1 or self._has_been_ready or now >= self._began_at + FIRST
            if may_start and now >= slot.start_at:
                slot.process, slot.wanted = self.start_process(slot.number), False
                slot.warn_at = now + SLOW
            return
        if slot.process.report.stuck and now >= slot.again and not slot.wanted:
            _log.error("process %d is replaced: %s", slot.number, _stuck(slot.process))
            slot.again, slot.wanted = now + AGAIN, True
        # One after the other: no process starts while another one starts, or finishes its work.
        at_work = [any_slot.process for any_slot in self.slots]
        if slot.wanted and all(process in at_work for process in self._processes):
            slot.wanted, slot.warn_at = False, now + SLOW
            slot.fresh = self.start_process(slot.number)

    def _died(self, slot: ProcessSlot, process: Process) -> None:
        """Let another process take the place of a dead one, unless none can begin."""
        if self._stopping:
            return
        code, lived = process.over.result(), time.monotonic() - process.began
        has_been_ready = self._has_been_ready or process.report.ready
        is_killed = code < 0  # by a signal, as for want of memory: then a restart may help
        if not is_killed and not has_been_ready and self.folder is None:
            if code not in (WRONG_USAGE, FAILED):  # else it has printed the cause
                _log.error("a process has ended (%s) before it was ready", process.cause())
            self._exit_code = code or FAILED
            self.stop()
            return
        pause = slot.pause(lived)
        slot.start_at = time.monotonic() + pause
        asyncio.get_running_loop().call_later(pause, self._news.set)
        self.totals.restarts += 1
        _log.error(
            "process %d has died (%s) after %.1f s; another takes its place in %g s",
            slot.number,
            process.cause(),
            lived,
            pause,
        )

    def _failed(self, fresh: Process) -> None:
        """Give up to replace processes: a new one has ended before it was ready.

        Others would fail as it did. The processes at work go on.
        """
        for slot in self.slots:
            slot.wanted = False
        _log.error(
            "the new process %d has ended (%s) before it was ready; the running ones keep the code "
            "they have",
            fresh.number,
            fresh.cause(),
        )

    def start_process(self, number: int) -> Process:
        """Start a process for the slot of this number."""
        process = Process(number, self.command, self.pass_fds, self._news.set, self.totals.lost())
        self._processes.append(process)
        process.over.add_done_callback(lambda _: self._ended(process))
        return process

    def _ended(self, process: Process) -> None:
        """Keep the figures of a process that has ended, and have its slot tended."""
        self.totals.ended(process)
        self._news.set()

    def _end(self, process: Process) -> None:
        """Ask a process to end, and kill it if it does not."""
        # Only the first request to a working process allows for the grace: at a second one it must
        # end at once, even if a handler blocks its loop.
        finishes = process.report.ready and not process.end_requests
        process.end(LEEWAY + (self.grace if finishes else 0))

    # Chores.

    async def _hear_requests(self) -> None:
        """Replace processes that operators ask to replace."""
        host = socket.gethostname()
        while True:
            await asyncio.sleep(POLL)
            processes = {  # by the name under which each claims
                f"{host}:{process.pid}": process
                for process in self._processes
                if process.pid is not None
            }
            if not processes or (lane := self.totals.lane()) is None:
                continue
            try:
                async with asyncio.timeout(PATIENCE):
                    requests = await arun_steps(take_requests(list(processes)), lane.acall)
            except (BideError, TimeoutError) as error:  # the processes report a store that is away
                _log.debug("requests to replace processes cannot be looked for: %s", error)
                continue
            for holder, actor in requests.items():
                self._replace(processes[holder], printable(actor, MAX_ACTOR))

    def _replace(self, process: Process, actor: str) -> None:
        """Have a process replaced, as an operator asks; one that ends already must end at once."""
        for slot in self.slots:
            if slot.process is process:
                _log.warning("process %d is replaced: %s asked for it", slot.number, actor)
                slot.wanted = True
                self._news.set()
                return
        self._end(process)

    def publish_health(self, *, feeds_watchdog: bool) -> None:
        """Keep the health file up to date, tell systemd once all are ready, feed its watchdog."""
        if self.health_file is not None:
            update_health_file(self.health_file, self.trouble())
        self.totals.ready = sum(
            slot.process is not None and slot.process.ready for slot in self.slots
        )
        reloading = any(slot.wanted or slot.fresh is not None for slot in self.slots)
        if not self._notified_ready and not reloading and self.totals.ready == len(self.slots):
            self._notified_ready = True
            notify(f"READY=1\nSTATUS=processes at work: {len(self.slots)}")
        if feeds_watchdog and self.hang() is None:
            notify("WATCHDOG=1")

    async def _watch(self, sources: Sources) -> None:
        """Reload whenever a file has changed."""
        while True:
            await asyncio.sleep(RELOAD_POLL)
            if changed := await asyncio.to_thread(sources.changed):
                _log.info("%s changed", ", ".join(path.name for path in changed))
                self.reload()


def _ends_with_terminal() -> bool:
    """Tell whether SIGHUP means that the terminal was closed: if one is used, except by nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    standard_streams = 0, 1, 2
    return any(os.isatty(descriptor) for descriptor in standard_streams)


def _warn_if_slow(slot: ProcessSlot, process: Process) -> None:
    """Warn that a process is not ready yet, and again when twice the time has passed.

    Nothing else tells of one that hangs while it starts: it may load a large model, or wait for the
    store, so that is no reason to kill it.
    """
    now = time.monotonic()
    if now >= slot.warn_at:
        lived = now - process.began
        slot.warn_at = now + max(SLOW, lived)
        _log.warning("the new process %d is not ready after %.0f s", slot.number, lived)


def _stuck(process: Process) -> str:
    """Return why a stuck process is replaced, in words."""
    queues = ", ".join(process.report.stuck)
    return f"all slots of {queues} are taken by handlers that do not return"
