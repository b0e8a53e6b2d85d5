"""One worker process as its supervisor sees it: started, heard of, told to end, and over."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence

from bide.worker.process.child import FAILED
from bide.worker.process.pipe import Report, listen

__all__ = ["CommandOf", "Process"]

LAST_WORD = 1.0
"""Seconds to hear what a process that has ended said last; a child of its own may hold the line."""

_log = logging.getLogger("bide.worker")

CommandOf = Callable[[int], Sequence[str]]
"""From the descriptor of the child's end of its line to what is to be run."""


class Process:
    """A process, from its start to its end.

    Args:
        number: of its place, for people.
        command_of: what it runs.
        pass_fds: descriptors that it is to have.
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
        """What it has told last."""
        self.began = time.monotonic()
        self.heard = self.began
        """When it has told that."""
        self.told = 0
        """How many times it was told to end."""
        self._tell = heard
        self._news = asyncio.Event()
        self._child: asyncio.subprocess.Process | None = None
        self.over = asyncio.create_task(self._live(command_of, tuple(pass_fds)))
        """Done with its exit code when it has ended."""

    @property
    def ready(self) -> bool:
        """Whether it is at work."""
        return self.report.ready and not self.over.done()

    @property
    def lived(self) -> float:
        """For how many seconds it has been there."""
        return time.monotonic() - self.began

    async def until_known(self) -> bool:
        """Wait until it is ready, or has ended; return whether it is ready."""
        await self._news.wait()
        return self.ready

    def end(self, patience: float) -> None:
        """Tell it to end, and kill it if it has not after so many seconds."""
        self.told += 1
        child = self._child
        if child is not None and child.returncode is None:
            child.terminate()
        asyncio.get_running_loop().call_later(patience, self._kill)

    def cause(self) -> str:
        """Return for people how it has ended."""
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
