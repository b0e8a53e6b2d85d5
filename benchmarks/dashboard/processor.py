"""How much of a processor processes use, and how urgently: Linux's /proc."""

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

__all__ = ["be_last", "used"]

_TICK = os.sysconf("SC_CLK_TCK")

_ENDED = (FileNotFoundError, ProcessLookupError)
"""A process has ended meanwhile."""


def used(root: int) -> float:
    """Return the seconds of processor time of a process and of all that it has started."""
    return sum(_family(root).values()) / _TICK


def be_last(root: int) -> None:
    """Give a process, and all that it has started, the lowest priority."""
    for process in _family(root):
        with suppress(*_ENDED):
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


def _family(root: int) -> dict[int, int]:
    """Return the processor time of a process and of all that it has started, in clock ticks."""
    spent: dict[int, int] = {}
    children = defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(*_ENDED):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(folder.name))
            spent[int(folder.name)] = int(fields[11]) + int(fields[12])
    found = [root]
    for process in found:
        found += children[process]
    return {process: spent.get(process, 0) for process in found}
