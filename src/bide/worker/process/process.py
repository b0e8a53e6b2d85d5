"""One worker process as its supervisor sees it: started, reporting, stopped, ended."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence

from bide.worker.process.child import FAILED
from bide.worker.process.pipe import Report, listen

LAST_WORD = 1.0
"""Seconds to receive the last report of an ended process; its children may hold the socket open."""

_log = logging.getLogger("bide.worker")

CommandOf = Callable[[int], Sequence[str]]
"""Returns the command line, given the descriptor of the child's end of the socket."""


class Process:
    """A process, from its start to its end.

    Args:
        number: of its place, for the log.
        command_of: returns its command line.
        pass_fds: descriptors that it inherits.
        heard: called with each of its reports.
    """

    def __init__(
        self,
        number: int,
        command_of: CommandOf,
        pass_fds: Sequence[int],
        heard: Callable[["Process", Report], None],
    ) -> None:
        self.number = number
        self.report = Report()
        """Its last report."""
        self.began = time.monotonic()
        self.heard = self.began
        """When that report came, by `time.monotonic`."""
        self.told = 0
        """How many times it was asked to end."""
        self._tell = heard
        self._news = asyncio.Event()
        self._child: asyncio.subprocess.Process | None = None
        self.over = asyncio.create_task(self._live(command_of, tuple(pass_fds)))
        """Ends with the exit code of the process."""

    @property
    def ready(self) -> bool:
        """Whether it claims messages."""
        return self.report.ready and not self.over.done()

    @property
    def pid(self) -> int | None:
        """Its process id; `None` before it was started."""
        return None if self._child is None else self._child.pid

    @property
    def lived(self) -> float:
        """How many seconds it has lived."""
        return time.monotonic() - self.began

    async def until_known(self) -> bool:
        """Wait until it is ready, or has ended; return whether it is ready."""
        await self._news.wait()
        return self.ready

    def end(self, patience: float) -> None:
        """Ask it to end, from the second time on at once; kill it after `patience` seconds."""
        self.told += 1
        child = self._child
        if child is not None and child.returncode is None:
            child.send_signal(signal.SIGTERM if self.told == 1 else signal.SIGINT)
        asyncio.get_running_loop().call_later(patience, self._kill)

    def cause(self) -> str:
        """Return how it has ended, for the log."""
        code = self.over.result()
        if code >= 0:
            return f"exit code {code}"
        return f"killed by {signal.Signals(-code).name}"

    async def _live(self, command_of: CommandOf, pass_fds: tuple[int, ...]) -> int:
        try:
            return await self._run(command_of, pass_fds)
        except OSError as error:  # no memory for another process, no descriptor left
            _log.error("process %d cannot be started: %s", self.number, error)
            return FAILED
        finally:
            self.report.ready = False
            self._news.set()

    async def _run(self, command_of: CommandOf, pass_fds: tuple[int, ...]) -> int:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = child = await asyncio.create_subprocess_exec(
                    *command_of(theirs.fileno()), pass_fds=(*pass_fds, theirs.fileno()),
                    process_group=0,  # so that Ctrl-C comes to the supervisor alone
                )  # fmt: skip
        except OSError:
            ours.close()
            raise
        if self.told:
            child.terminate()
        listening = asyncio.create_task(listen(ours, self._hear))
        try:
            code = await child.wait()
            await asyncio.wait([listening], timeout=LAST_WORD)
            return code
        finally:
            listening.cancel()

    def _hear(self, report: Report) -> None:
        self.heard = time.monotonic()
        self.report = report
        if report.ready:
            self._news.set()
        self._tell(self, report)

    def _kill(self) -> None:
        child = self._child
        if child is not None and child.returncode is None:
            _log.error("process %d does not end; it is killed", child.pid)
            child.kill()
