"""Which process of which machine this is, and whether another one is dead for certain.

A process id is given again to other processes, and each container has its own. So an origin names
the boot of the machine, the namespaces in which ids and times count, and when the process started.
It is known only where Linux says so in /proc: elsewhere no process is dead for certain.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

LONGEST = 128
"""The maximum number of characters of an origin."""

UNKNOWN = ""
"""The origin of a process where the system does not tell."""

_ORIGIN = re.compile(r"([0-9a-f-]{36} [0-9]{1,20} [0-9]{1,20}) ([1-9][0-9]{0,6}) ([0-9]{1,20})")

_DEAD_STATES = ("Z", "X")
"""The states of processes that have ended, and whose parents have not asked how."""


class _Process(NamedTuple):
    """What /proc/PID/stat says of a process."""

    pid: str
    state: str
    start: str
    """In clock ticks since the boot."""


def of_this_process(proc: Path = PROC) -> str:
    """Return the origin of this process; `UNKNOWN` where the system does not tell.

    Args:
        proc: where the system describes processes.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        process = _process(proc / "self")
        pids = (proc / "self/ns/pid").stat().st_ino
        # Ticks count from the boot, but a namespace may shift them; older systems have none.
        times_file = proc / "self/ns/time"
        times = times_file.stat().st_ino if times_file.exists() else 0
    except (OSError, ValueError):
        return UNKNOWN
    # In a container, /proc may be that of the machine, where other ids count.
    if process.pid != str(os.getpid()):
        return UNKNOWN
    origin = f"{boot} {pids} {times} {process.pid} {process.start}"
    return origin if _ORIGIN.fullmatch(origin) else UNKNOWN


def is_dead(origin: str, proc: Path = PROC) -> bool:
    """Return whether a process of this machine is dead for certain.

    It is if no process has its id, or one that started at another time, or if it is a zombie. Of
    other machines and containers, and of a text that is no origin, nothing is known.

    Args:
        origin: what `of_this_process` has returned in it.
        proc: where the system describes processes.
    """
    there, here = _ORIGIN.fullmatch(origin), _ORIGIN.fullmatch(of_this_process(proc))
    if there is None or here is None or there[1] != here[1]:
        return False
    pid = int(there[2])
    try:
        process = _process(proc / str(pid))
    except (FileNotFoundError, ProcessLookupError):
        return not _exists(pid)  # /proc may hide the processes of other users
    except (OSError, ValueError):
        return False
    return process.state in _DEAD_STATES or process.start != there[3]


def _process(folder: Path) -> _Process:
    """Read what the system says of a process.

    Raises:
        FileNotFoundError, ProcessLookupError: the process is not shown.
        OSError: it may not be read.
        ValueError: this is not what a system says.
    """
    # "PID (NAME) STATE PARENT ...": the name may have spaces, parentheses and any bytes in it.
    text = (folder / "stat").read_bytes().decode("ascii", "replace")
    begin, parenthesis, behind_name = text.rpartition(")")
    fields = behind_name.split()
    if not parenthesis or len(fields) < 20:
        raise ValueError(f"{folder}/stat does not describe a process")
    return _Process(begin.partition(" ")[0], fields[0], fields[19])


def _exists(pid: int) -> bool:
    """Return whether there is a process of this id, also one that /proc hides."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
