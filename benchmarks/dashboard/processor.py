"""How much of a processor processes use, by Linux's /proc."""

import os
from collections import defaultdict
from pathlib import Path

__all__ = ["used"]

_TICK = os.sysconf("SC_CLK_TCK")


def used(root: int) -> float:
    """Return the seconds of processor time of a process and of all that it has started."""
    spent: dict[int, int] = {}
    children = defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        children[int(fields[1])].append(int(folder.name))
        spent[int(folder.name)] = int(fields[11]) + int(fields[12])
    found = [root]
    for process in found:
        found += children[process]
    return sum(spent.get(process, 0) for process in found) / _TICK
