"""Reaps processes whose parents have ended, where this process is PID 1, as in a container."""

import os
from pathlib import Path

PAUSE = 1.0
"""Seconds between two looks."""


class Orphans:
    """The dead children of this process that nothing else waits for.

    A process that a handler has started and left alone becomes a child of PID 1 when its parent
    ends. Once dead it stays as a zombie until PID 1 waits for it. The supervisor's own children are
    waited for at once, so what is still there at the next look is an orphan.
    """

    def __init__(self) -> None:
        self._dead: set[int] = set()
        self._looked = float("-inf")

    def reap(self, now: float) -> None:
        """Reap those that were dead at the last look already; `now` is the monotonic clock."""
        if now - self._looked < PAUSE:
            return
        self._looked = now
        dead = _dead_children()
        for pid in dead & self._dead:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # something has waited for it meanwhile
                continue
        self._dead = dead


def _dead_children() -> set[int]:
    own, dead = str(os.getpid()), set[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it is gone
            continue
        if state == "Z" and parent == own:
            dead.add(int(stat.parent.name))
    return dead
