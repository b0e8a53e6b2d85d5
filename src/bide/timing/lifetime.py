"""Handle forks and the end of the process, for queues, wheels and executors.

After a fork the child's copies raise `Forked`: their threads do not exist there, another thread may
have held a lock, and the timers still belong to the parent. At interpreter exit everything that has
threads is told, so that no pending timer keeps the process alive.
"""

import atexit
import os
import threading
import weakref
from typing import ClassVar, Protocol

from bide.timing.errors import Forked


class _Exitable(Protocol):
    def _at_exit(self) -> None: ...


_lock = threading.Lock()
_owned: "weakref.WeakSet[OwnedByProcess]" = weakref.WeakSet()
_exitables: weakref.WeakSet[_Exitable] = weakref.WeakSet()


class OwnedByProcess:
    """An object with a lock that only the process that made it can use."""

    _told_as: ClassVar[str | None] = None  # what errors call it; its class by default

    def __init__(self) -> None:
        self._forked = False
        self._make_lock()
        with _lock:
            _owned.add(self)

    def _make_lock(self) -> None:
        self._lock = threading.RLock()

    def _check_process(self) -> None:
        if self._forked:
            kind = self._told_as or type(self).__name__
            raise Forked(
                f"this {kind} was made before the fork and belongs to the parent process; "
                f"make another {kind} in process {os.getpid()}"
            )

    def _after_fork(self) -> None:
        self._make_lock()
        self._forked = True


def guard_exit(owner: _Exitable) -> None:
    """Call `owner._at_exit()` when the interpreter is about to end."""
    with _lock:
        _exitables.add(owner)


def _after_fork_in_child() -> None:
    _lock.release()
    for owner in list(_owned):
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
