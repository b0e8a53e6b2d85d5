"""The processes of a session: all that a worker has started, whichever group they are in."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["kill_session", "memory_of", "processes_of"]


def processes_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    processes: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                processes.append(int(path.parent.name))
    return processes


def kill_session(session: int) -> None:
    """Kill all processes of a session with -9, also those that start meanwhile."""
    while processes := processes_of(session):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def memory_of(processes: Iterable[int]) -> int:
    """Return the bytes that processes have in memory; each counts its share of what several use."""
    total = 0
    for process in processes:
        with suppress(OSError):  # it has ended meanwhile
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total
