"""Worker processes as their supervisor sees them: started, reporting, ended.

A process reports over a socket: once a beat, as a line of JSON.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bide.logs import logger
from bide.observing.tally import Tally, total
from bide.tasks import background

BEAT = 1.0
"""Seconds between two reports of a process to its supervisor."""

WRONG_USAGE, FAILED = 2, 3
"""Exit codes of a process that could not begin, and has printed why."""

LONGEST = 1 << 24
"""The largest report in bytes. A tally takes a few hundred, and a process may have many queues."""


class ProcessReport(msgspec.Struct, omit_defaults=True):
    """A report of a process: that its event loop runs, and what it has done."""

    ready: bool = False
    """Whether it claims messages."""
    store: str = ""
    """The URL of the store with its password; never log it."""
    tallies: Mapping[str, Tally] = {}
    """By queue, since the process began."""
    stuck: Sequence[str] = ()
    """Queues whose places are all taken by handlers that do not return."""
    notifications_lost: bool = False
    """Whether other processes cannot wake its claims."""
    threads: Mapping[str, int] = {}
    """How often its threads and tasks died and were restarted, by name."""
    lost: Mapping[str, int] = {}
    """How many changes it has seen to be lost, at least, by queue."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ProcessReport).decode


@asynccontextmanager
async def reporting(
    descriptor: int, figures: Callable[[], ProcessReport], stop: Callable[[], None]
) -> AsyncIterator[Callable[[], None]]:
    """Report to the supervisor once a beat, and at the end. Runs in the worker process.

    Args:
        descriptor: of the socket.
        figures: returns the report.
        stop: called when the supervisor has died.

    Yields:
        A function that reports now, unless the last report is still in the buffer: the next one has
        all figures.
    """
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))

    def send() -> None:
        report = figures()
        if not writer.is_closing() and not writer.transport.get_write_buffer_size():
            writer.write(_encode(report) + b"\n")

    async def beat() -> None:
        while True:
            send()
            await asyncio.sleep(BEAT)

    async def stop_when_orphaned() -> None:
        with suppress(OSError):  # the supervisor was killed
            await reader.read()  # it sends nothing: this ends when it has died
        _log.error("the supervisor has died; stopping")
        stop()

    tasks = [background("bide-report", beat), background("bide-orphan", stop_when_orphaned)]
    try:
        yield send
    finally:
        for task in tasks:
            task.cancel()
        send()
        writer.close()
        with suppress(OSError):  # it has died; `stop` was called
            await writer.wait_closed()


async def receive(pipe: socket.socket) -> AsyncIterator[ProcessReport]:
    """Receive the reports of a process until it ends. Runs in the supervisor."""
    reader, writer = await asyncio.open_connection(sock=pipe, limit=LONGEST)
    with closing(writer), suppress(ConnectionResetError):  # it was killed
        # A line without an end is the last one of a process that was killed while it wrote.
        while (line := await reader.readline()).endswith(b"\n"):
            yield _decode(line)


LAST_REPORT = 1.0
"""Seconds to receive the last report of an ended process; its children may hold the socket open."""

_log = logger("bide.worker")


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module, with the warning filters of this process."""
    flags = [f"-W{option}" for option in sys.warnoptions]
    return [sys.executable, *flags, "-m", module, *arguments]


INSTRUMENTATION = "opentelemetry.instrumentation.auto_instrumentation"
"""The package whose folder `opentelemetry-instrument` puts into PYTHONPATH: Python then begins with
the `sitecustomize` that is in it."""


def child_environment() -> dict[str, str]:
    """Return the environment of a child, which is instrumented if this process is.

    Some versions of OpenTelemetry take their folder out of PYTHONPATH once this process has begun.
    """
    begun_by, package = sys.modules.get("sitecustomize"), sys.modules.get(INSTRUMENTATION)
    if begun_by is None or package is None or not begun_by.__file__ or not package.__file__:
        return {**os.environ}
    folder = str(Path(package.__file__).parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder in paths or Path(begun_by.__file__).parent != Path(folder):
        return {**os.environ}
    return {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *paths])}


@dataclass(eq=False)
class Process:
    """A process, from its start to its end."""

    number: int
    """The number of its place, for the log."""
    command: Sequence[str]
    """Its command line. The descriptors of its end of the socket, and of what it inherits, are
    added."""
    pass_fds: Sequence[int]
    """Descriptors that it inherits."""
    changed: Callable[[], None]
    """Called with each of its reports."""
    lost_before: Mapping[str, int] = field(default_factory=dict)
    """How many changes were known to be lost when it was started, by queue."""
    report: ProcessReport = field(default_factory=ProcessReport)
    """Its last report."""
    end_requests: int = 0
    """How many times it was asked to end."""
    _child: asyncio.subprocess.Process | None = None
    """The process of the system; `None` before it was started, and if it could not be."""

    def __post_init__(self) -> None:
        self.began = self.reported = time.monotonic()
        """When it was started, and when its last report came."""
        self.over = asyncio.create_task(self._live())
        """Ends with the exit code of the process."""

    @property
    def ready(self) -> bool:
        """Whether it claims messages."""
        return self.report.ready and not self.over.done()

    @property
    def lost(self) -> dict[str, int]:
        """How many changes are lost as far as it knows, at least, by queue."""
        return total([self.lost_before, self.report.lost])

    @property
    def pid(self) -> int | None:
        """Its process id; `None` before it was started."""
        return None if self._child is None else self._child.pid

    def end(self, patience: float) -> None:
        """Ask it to end, from the second time on at once; kill it after `patience` seconds."""
        self.end_requests += 1
        child = self._child
        if child is not None and child.returncode is None:
            child.send_signal(signal.SIGTERM if self.end_requests == 1 else signal.SIGINT)
        asyncio.get_running_loop().call_later(patience, self._kill, "does not end")

    def cause(self) -> str:
        """Return how it has ended, for the log."""
        code = self.over.result()
        if code >= 0:
            return f"exit code {code}"
        number = -code  # as asyncio reports the end by a signal
        names = [member.name for member in signal.Signals if member == number]
        return f"killed by {names[0] if names else f'signal {number}'}"  # some have no name

    async def _live(self) -> int:
        """Start the process, receive its reports, and wait for its end; return its exit code."""
        own_end: socket.socket | None = None
        try:
            own_end, child_end = socket.socketpair()
            with child_end:  # the child has a copy: if it dies, reading from the other end ends
                descriptors = child_end.fileno(), *self.pass_fds
                self._child = child = await asyncio.create_subprocess_exec(
                    *self.command,
                    *map(str, descriptors),
                    pass_fds=descriptors,
                    env=child_environment(),
                    process_group=0,  # so that only the supervisor gets Ctrl-C
                )
        except OSError as error:  # no memory for another process, no descriptor left
            if own_end is not None:
                own_end.close()
            _log.error("process %d cannot be started: %s", self.number, error)
            return FAILED
        if self.end_requests:  # they came while it was started, and had no process to signal
            with suppress(ProcessLookupError):  # it has ended by itself
                child.terminate()
        receiving = asyncio.create_task(self._listen(own_end))
        try:
            code = await child.wait()
            await asyncio.wait([receiving], timeout=LAST_REPORT)
            return code
        finally:
            receiving.cancel()

    async def _listen(self, pipe: socket.socket) -> None:
        """Keep the last report of the process until it ends."""
        try:
            async for self.report in receive(pipe):
                self.reported = time.monotonic()
                self.changed()
        except Exception as error:  # noqa: BLE001  (the process is replaced)
            self._kill(f"sends something that is not a report ({error!r})")

    def _kill(self, why: str) -> None:
        """Kill the process if it has not ended; `why` goes into the log."""
        child = self._child
        if child is not None and child.returncode is None:
            _log.error("process %d %s; it is killed", child.pid, why)
            child.kill()
