"""Threads in which plain handlers run. One that does not return does not keep the program alive.

`concurrent.futures.ThreadPoolExecutor` lets Python wait for its threads at the end of the program,
for however long.
"""

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from bide.logs import logger
from bide.model.forks import in_child

P = ParamSpec("P")
T = TypeVar("T")

LINGER = 2.0
"""Seconds that handlers which still run get to return when the program ends."""

_log = logger("bide.worker")

_busy: set[threading.Thread] = set()
"""The threads of this process in which handlers run."""

_leaving = threading.Event()
"""Set when the program ends."""


class _Jobs:
    """What the threads of an executor are to do, and have not begun."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.waiting: deque[Callable[[], None]] = deque()
        self.idle = 0
        """How many threads wait for a job."""
        self.closed = False
        _all_jobs.add(self)

    def close(self) -> None:
        """End the threads, each when it finds no job."""
        with self.change:
            self.closed = True
            self.change.notify_all()

    def work(self) -> None:
        """Do jobs until there will be none. Runs in each thread."""
        while (job := self._next()) is not None:
            _busy.add(threading.current_thread())
            try:
                job()
            finally:
                _busy.discard(threading.current_thread())
            del job  # an idle thread keeps no message in memory

    def _next(self) -> Callable[[], None] | None:
        """Return the next job once there is one; `None`: there will be none."""
        with self.change:
            while not self.waiting:
                if self.closed or _leaving.is_set():
                    return None
                self.idle += 1
                try:
                    self.change.wait()
                finally:
                    self.idle -= 1
            return self.waiting.popleft()


_all_jobs = weakref.WeakSet[_Jobs]()


@in_child
def _forget_threads() -> None:
    """Forget the threads of the parent: a child has none of them, and one may have held a lock."""
    _busy.clear()
    for jobs in _all_jobs:
        jobs.change = threading.Condition()


class HandlerThreads(Executor):
    """An executor whose threads end with the program.

    As in that of Python, there are no more threads than were needed at once.

    Args:
        limit: the maximum number of threads.
        prefix: how their names begin.
    """

    def __init__(self, limit: int, prefix: str) -> None:
        self._limit, self._prefix = limit, prefix
        self._started = 0
        """How many threads were started."""
        self._jobs = _Jobs()  # the threads know only these, so that an executor may be forgotten
        weakref.finalize(self, self._jobs.close)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread; return the future of what it returns or raises.

        Raises:
            RuntimeError: `shutdown` was called, or the system has no thread left.
        """
        future: Future[T] = Future()
        jobs = self._jobs
        with jobs.change:
            if jobs.closed:
                raise RuntimeError("these threads were ended: they make no more calls")
            if len(jobs.waiting) >= jobs.idle and self._started < self._limit:
                name = f"{self._prefix}_{self._started}"
                # It waits for the lock. If the system has no thread left, the call is not made.
                threading.Thread(target=jobs.work, name=name, daemon=True).start()
                self._started += 1
            jobs.waiting.append(partial(_run, future, partial(fn, *args, **kwargs)))
            jobs.change.notify()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the threads, each when it finds no job; this waits for none of them."""
        self._jobs.close()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    """Make a call, unless it was cancelled before, and note how it has ended."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  (who waits for the future raises it)
        future.set_exception(error)
    else:
        future.set_result(result)


def _leave() -> None:
    """Give handlers a moment to return; the program ends beside those that do not."""
    _leaving.set()
    deadline = time.monotonic() + LINGER
    for thread in list(_busy):
        thread.join(max(0.0, deadline - time.monotonic()))
    if _busy:
        _log.error("a handler does not end; the process ends anyway")


atexit.register(_leave)
