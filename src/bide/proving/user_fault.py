"""The user's own fault: a command that is run again and again meanwhile."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bide.proving.plan import ProvingStopped, last_line
from bide.testing.history import Journal

PATIENCE = 120.0
"""Seconds that a fault may take."""


class UserFault:
    """Runs a command at regular times; leaving the block kills one that still runs.

    Args:
        command: for the shell.
        every: seconds from the beginning of one run to that of the next.
        log: the file for what the command prints.
        journal: where to note when it ran.
    """

    def __init__(self, command: str, every: float, log: Path, journal: Journal) -> None:
        self.times = 0
        """How often it has run."""
        self._command = command
        self._every = every
        self._log = log
        self._journal = journal
        self._next = time.monotonic() + every
        self._began = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def tick(self) -> None:
        """Start the command if it is time, or look whether it has ended.

        Raises:
            ProvingStopped: it failed, or takes too long.
        """
        now = time.monotonic()
        if self._process is not None:
            self._look(self._process)
        elif now >= self._next:
            self._next = now + self._every
            self._began = now
            self._journal.did("fault", number=self.times + 1)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    shell=True,  # it is the user's own command line
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # so that all that it starts can be ended
                )

    def finish(self) -> None:
        """Wait for the end of a run.

        Raises:
            ProvingStopped: it failed, or takes too long.
        """
        while self._process is not None:
            self._look(self._process)
            time.sleep(0.02)

    def _look(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is None:
            if time.monotonic() - self._began > PATIENCE:
                raise ProvingStopped(f"the fault did not end within {PATIENCE:g} s")
            return
        self._process = None
        self._journal.did("fault ends", number=self.times + 1, code=code)
        if code != 0:
            raise ProvingStopped(f"the fault failed with exit code {code}: {last_line(self._log)}")
        self.times += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
