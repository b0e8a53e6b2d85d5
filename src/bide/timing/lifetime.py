"""What happens to queues, wheels and executors when the process forks or ends.

After a fork the child's copies answer `Forked`: their threads are not there, a lock may have been
held by one of them, and their timers still belong to the parent. At interpreter exit whoever has
threads is told, so that no pending timer keeps the process alive.
"""

import atexit
import os
import threading
import weakref
from typing import Protocol

from bide.timing.errors import Forked

__all__ = ["forked", "guard_exit", "guard_fork"]


class _Forkable(Protocol):
    def _after_fork(self) -> None: ...


class _Exitable(Protocol):
    def _at_exit(self) -> None: ...


_lock = threading.Lock()
_forkables: weakref.WeakSet[_Forkable] = weakref.WeakSet()
_exitables: weakref.WeakSet[_Exitable] = weakref.WeakSet()


def guard_fork(owner: _Forkable) -> None:
    """Have `owner._after_fork()` called in every child that is forked from this process."""
    with _lock:
        _forkables.add(owner)


def guard_exit(owner: _Exitable) -> None:
    """Have `owner._at_exit()` called when the interpreter is about to end."""
    with _lock:
        _exitables.add(owner)


def forked(what: str) -> Forked:
    """Return the error for using `what` in a child process."""
    return Forked(
        f"this {what} was made before the fork and belongs to the parent process; "
        f"make another {what} in process {os.getpid()}"
    )


def _after_fork_in_child() -> None:
    _lock.release()
    for owner in list(_forkables):
        owner._after_fork()
    _exitables.clear()  # their threads are the parent's


def _at_exit() -> None:
    for owner in list(_exitables):
        owner._at_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_after_fork_in_child,
    )
atexit.register(_at_exit)
