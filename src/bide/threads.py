"""All threads that bide starts. These are logged, counted and restarted if they die:

| name | what it does | where |
|---|---|---|
| bide-lane | executes what callers submit to a store | `bide.lane.lane_thread` |
| bide-notifier | listens to other processes of a store | `bide.lane.lane_thread` |
| bide-timing-wheel | calls the timers of a wheel | `bide.timing.timing_wheel` |
| bide-watcher | watches sentinels and lost nodes of Redis | `bide.engines.redis.nodes` |
| bide-watch | warns of handlers that hold up the event loop | `bide.worker.process.runner` |
| bide-dashboard | answers for a dashboard in a WSGI application | `bide.dashboard.wsgi_app` |
| bide-demo | waits for the end of the demo | `bide.cli.demo.actors` |

The others hand what their work raises to the future, or the caller, that waits for it, and go on:

| name | what it does | where |
|---|---|---|
| bide-timing-N | run the tasks of an executor | `bide.timing.worker_pool` |
| bide-handler_N | run plain handlers of a worker | `bide.consuming.handler_threads` |
| bide-batch_N | run plain batch handlers | `bide.consuming.handler_threads` |
| bide-first-contact | opens a store that may not be there yet | `bide.lane.first_contact` |
| bide-lookup_N | look up the names of hosts | `bide.targets.http.addresses` |
| bide-make-queues_N | wait for other processes that make queues | `bide.server.limits.quotas` |
| bide-forward_0 | forwards from an outbox | `bide.cli.service.forward` |
| bide-metrics | accepts scrapes of metrics; a thread for each answers | `bide.observing.metrics` |
| a timer | ends a process whose handlers do not end | `bide.worker.process.child` |
"""

import _thread
import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from bide.clock import Signal
from bide.logs import logger

T = TypeVar("T")

PAUSE = 1.0
"""The minimum time in seconds from one restart of a thread to the next."""

LOOK_AGAIN = 1.0
"""How often, in seconds, who waits for a thread checks that it is there."""

deaths: Counter[str] = Counter()
"""How often threads, and tasks of `bide.tasks`, have died in this process, by name."""

_log = logger("bide.threads")


class Background:
    """A thread of bide's own: it is started when it is needed, and runs on if its work raises.

    Finalizers and signal handlers may call every method. `Thread.start` is not made for an
    exception of a signal handler; so the thread is started by another one, which no signal strikes.

    Args:
        name: of the thread, beginning with `bide-`.
        run: its work; called once more if it raises, or if it was needed meanwhile.
    """

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self.name = name
        self._run = run
        self._turn = threading.RLock()
        """Held by the thread that works: for a moment there may be two threads, as when `ensure`
        starts another one while the last one ends."""
        self._thread: threading.Thread | None = None
        """The last one that works or has worked."""
        self._needed = False
        """Whether there is work that no call of `run` has begun."""
        self._started = False
        """Whether the thread runs or is about to."""
        self._joining: deque[Signal] = deque()
        """Wake those that wait for the end of the work."""

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def was_started(self) -> bool:
        """Whether the thread runs or is about to."""
        return self._started

    @property
    def is_current(self) -> bool:
        """Whether this is the calling thread."""
        return self._thread is not None and self._thread.ident == _thread.get_ident()

    def ensure(self, *, again: bool = False) -> None:
        """Let the thread do its work.

        Args:
            again: start it also if it was started and is not there.
        """
        self._needed = True
        if self._started and not (again and not self.is_alive):
            return
        self._started = True
        try:
            thread = threading.Thread(target=self._main, name=self.name, daemon=True)
            _thread.start_new_thread(self._start, (thread,))
        except BaseException:
            self._started = False
            raise

    def join(self) -> None:
        """Block until the thread has done its work; from the thread itself, return at once."""
        if self.is_current:
            return
        end = Signal()
        self._joining.append(end)
        while self._started and not end.wait(LOOK_AGAIN):
            self.ensure(again=True)  # the thread may be gone, as it is after a fork

    def _start(self, thread: threading.Thread) -> None:
        """Start the thread, from another new one: no signal handler runs in it.

        If the system has no thread left after this one, this one does the work. A task on an event
        loop waits for it, and does not look whether it is done.
        """
        try:
            thread.start()
        except Exception as error:  # noqa: BLE001  (the work is done without it)
            if "interpreter shutdown" not in str(error):  # when it ends, Python 3.12 starts none
                _log.warning("%s: no thread of this name (%s), another one works", self.name, error)
            threading.current_thread().name = self.name
            self._main()

    def _note_end(self) -> None:
        """Note that the thread has ended, and wake those that wait for that."""
        self._started = False
        while self._joining:
            self._joining.popleft().set()

    def _main(self) -> None:
        """Work, if no other thread does."""
        try:
            if not self._turn.acquire(blocking=False):
                return  # another one works
            self._thread = threading.current_thread()
            self._work()
        finally:
            try:
                self._turn.release()
            except RuntimeError:  # it was not taken
                pass
            else:
                self._note_end()
                # It was needed after the last look: whoever called `ensure` saw it started still.
                if self._needed:
                    self.ensure()

    def _work(self) -> None:
        """Call the work until it has returned and is not needed again."""
        died_at = float("-inf")
        while self._needed:
            self._needed = False
            try:
                self._run()
            except BaseException as error:  # noqa: BLE001  (nothing may end the thread)
                self._needed = True
                deaths[self.name] += 1
                _log.error(
                    "the thread %s died of %r; it is restarted", self.name, error, exc_info=error
                )
                if time.monotonic() - died_at < PAUSE:
                    Signal().wait(PAUSE)
                died_at = time.monotonic()


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that may wait in another thread, as `asyncio.to_thread` does.

    Once the main thread has ended, Python has no threads for that, and the event loop waits. So it
    does if the system has no thread left.
    """
    loop, context, turn = asyncio.get_running_loop(), copy_context(), threading.Lock()

    def call() -> T:
        if not turn.acquire(blocking=False):
            raise RuntimeError("the call is made in another thread")
        return context.run(function, *arguments)

    try:
        future = loop.run_in_executor(None, call)
    except RuntimeError:
        return call()  # without a thread for it, the executor may have queued it all the same
    return await future
