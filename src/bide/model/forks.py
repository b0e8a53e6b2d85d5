"""What the child of a fork has to do, also if Python does not know of the fork.

uWSGI forks its workers without telling Python, unless it is asked to. Threads of the parent are
gone then, connections are shared, and random numbers come twice.
"""

import os
import threading
from collections.abc import Callable

_steps: list[Callable[[], None]] = []
"""What a child has to do, in the order of `in_child`."""

process = os.getpid()
"""The id of this process, as of the last fork that was noticed: code that runs for each command
compares it, and calls `notice_fork` only if it is another."""

_lock = threading.RLock()


def in_child(step: Callable[[], None]) -> Callable[[], None]:
    """Call a function in each child of a fork."""
    _steps.append(step)
    return step


def notice_fork() -> None:
    """In the child of a fork, call the functions of `in_child`, unless they were called."""
    global process
    if os.getpid() != process:
        with _lock:
            if os.getpid() != process:  # else another thread was faster
                for step in _steps:
                    step()
                process = os.getpid()


def _after_fork() -> None:
    """In a child of a fork that Python knows of: notice it at once."""
    global _lock
    _lock = threading.RLock()  # another thread of the parent may hold the old one
    notice_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
