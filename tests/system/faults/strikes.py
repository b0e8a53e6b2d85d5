"""Interrupts calls of bide: by signals, cancellation, and exceptions in threads of its own."""

import asyncio
import ctypes
import importlib.metadata
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import Any, Literal, TypeVar

import bide

R = TypeVar("R")

SHORTEST, LONGEST = 1e-6, 0.05
"""The bounds, in seconds, of how far ahead an alarm is set."""


class Late(Exception):
    """What a signal handler raises: a soft time limit, such as pytest-timeout's."""


class Struck(Enum):
    """The result of a call that was interrupted: it has no answer."""

    STRUCK = "struck"


class Alarms:
    """Interrupts calls of the main thread by signals at random times.

    How far ahead an alarm is set follows the calls: about half of them are struck, wherever they
    are then, on a fast store as on a slow one.

    Args:
        error: what the handler raises.
        seed: of the random times.
    """

    def __init__(self, error: type[BaseException] = Late, *, seed: int = 1) -> None:
        self.error = error
        self.hits = 0
        self._armed = False
        self._random = random.Random(seed)
        self._reach = 0.0005

    def during(self, call: Callable[[], R]) -> R | Literal[Struck.STRUCK]:
        """Return the answer of a call, or that it was struck."""
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(SHORTEST, self._reach))
            try:
                answer = call()
            finally:
                self._armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except self.error:
            self.hits += 1
            self._reach = min(self._reach * 1.03, LONGEST)
            return Struck.STRUCK
        self._reach = max(self._reach * 0.97, 2 * SHORTEST)
        return answer

    def strike_if_armed(self, number: int, frame: FrameType | None) -> None:
        if self._armed and not is_spared(frame):
            raise self.error


def strike_at_entry(number: int, call: Callable[[], object]) -> bool:
    """Raise an error where a call enters its function `number` of bide, as a signal handler may.

    Returns:
        Whether it entered so many; `sys.settrace(None)` within the call ends the count.
    """
    entries = 0

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entries
        if frame.f_code.co_filename.startswith(bide.__path__[0]) and not is_spared(frame):
            entries += 1
            if entries == number:
                raise Late

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(Late):
            call()
    finally:
        sys.settrace(previous)
    return entries >= number


SPARED = (logging.__file__, importlib.metadata.__file__, "<frozen importlib._bootstrap>")
"""Modules of Python that an error leaves broken: two keep a lock, one keeps an empty list."""


def is_spared(frame: FrameType | None) -> bool:
    """Return whether a frame is, or was called by, one of a module that no error may strike."""
    while frame is not None:
        if frame.f_code.co_filename in SPARED:
            return True
        frame = frame.f_back
    return False


@contextmanager
def alarms(error: type[BaseException] = Late, *, seed: int = 1) -> Iterator[Alarms]:
    """Provide alarms while the signal has their handler."""
    strikes = Alarms(error, seed=seed)
    before, report = signal.signal(signal.SIGALRM, strikes.strike_if_armed), sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if unraisable.exc_type is not error:  # else it struck a finalizer
            report(unraisable)

    sys.unraisablehook = report_others
    try:
        yield strikes
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = report


class Cancellations:
    """Cancels calls that are tasks of an event loop, after a random number of its turns.

    A task is cancelled when it has submitted its command, or later; about half of them are.

    Args:
        loop: runs in another thread than those that call `during`.
        seed: of the random numbers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, seed: int = 1) -> None:
        self.hits = 0
        self._loop = loop
        self._random = random.Random(seed)
        self._reach = 10.0

    def during(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R | Literal[Struck.STRUCK]:
        """Return the answer of a call, or that it was cancelled."""
        return asyncio.run_coroutine_threadsafe(self._cancel(call()), self._loop).result()

    async def _cancel(self, call: Coroutine[Any, Any, R]) -> R | Literal[Struck.STRUCK]:
        task = asyncio.ensure_future(call)
        for _ in range(self._random.randint(1, int(self._reach))):
            await asyncio.sleep(0)
        task.cancel()
        try:
            answer = await task
        except asyncio.CancelledError:
            self.hits += 1
            self._reach *= 1.03
            return Struck.STRUCK
        self._reach = max(self._reach * 0.97, 1)
        return answer


@contextmanager
def cancellations(*, seed: int = 1) -> Iterator[Cancellations]:
    """Provide cancellations, and an event loop for them."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        loop = runner.get_loop()
        running = pool.submit(loop.run_forever)
        try:
            yield Cancellations(loop, seed=seed)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            running.result()


def raise_in(thread: threading.Thread, error: type[BaseException]) -> bool:
    """Raise an error in another thread, at its next bytecode; return whether it was struck."""
    if thread.ident is None:  # it is about to start
        return False
    if is_spared(sys._current_frames().get(thread.ident)):
        return False
    ident = ctypes.c_ulong(thread.ident)
    struck: int = ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))
    return struck == 1


def own_threads() -> list[threading.Thread]:
    """Return the threads of lanes that run in this process.

    The threads of a pool, which an earlier test may have left, are not among them: Python's pools
    count a thread that died as one that works, and would let tasks wait for it.
    """
    names = {"bide-lane", "bide-notifier"}
    return [thread for thread in threading.enumerate() if thread.name in names]
