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
        """The ids of those that were dead at the last look."""
        self._looked_at = float("-inf")
        """When it last looked, by the monotonic clock."""

    def reap(self, now: float) -> None:
        """Reap those that were dead at the last look already.

        Args:
            now: the time of the monotonic clock, in seconds.
        """
        if now - self._looked_at < PAUSE:
            return
        self._looked_at = now
        dead = _dead_children()
        for pid in dead & self._dead:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # something has waited for it meanwhile
                continue
        self._dead = dead


def _dead_children() -> set[int]:
    """Return the ids of children that are dead and were not waited for ("zombies")."""
    own_pid = str(os.getpid())
    dead: set[int] = set()
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "PID (NAME) STATE PARENT ...": the name may have spaces and parentheses in it.
            _, _, behind_name = stat_file.read_text().rpartition(")")
        except OSError:  # the process is gone
            continue
        state, parent_pid, *_ = behind_name.split()
        if state == "Z" and parent_pid == own_pid:
            dead.add(int(stat_file.parent.name))
    return dead
