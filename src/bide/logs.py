"""Loggers whose lines end no thread and no operation.

A filter, handler or record factory of the application may raise, and `logging` passes that on to
who logs. It may also use a queue of the same store. So a line is written when the thread that logs
holds nothing: what is logged while a lane is busy waits until a caller leaves it.
"""

import logging
import sys
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial

MAX_WAITING = 1_000
"""The maximum number of lines that wait; the oldest are dropped."""

waiting_lines: deque[Callable[[], object]] = deque(maxlen=MAX_WAITING)
"""Lines that `write_lines` writes."""

_busy_checks: list[Callable[[], bool]] = []
"""Each tells whether the calling thread holds something, and must not write lines now."""

_GUARDED = "_bide_guarded"
"""The attribute of a logger whose methods were replaced."""


def logger(name: str) -> logging.Logger:
    """Return the logger of a name; no filter or handler of it raises."""
    log = logging.getLogger(name)
    if not hasattr(log, _GUARDED):
        setattr(log, _GUARDED, True)
        log.handle = partial(_handle, log.handle)  # type: ignore[method-assign]
        log.makeRecord = partial(_record, log.makeRecord)  # type: ignore[method-assign]
    return log


def wait_while(busy: Callable[[], bool]) -> None:
    """Let lines of a thread wait while a function, called in this thread, returns true."""
    _busy_checks.append(busy)


def write_lines() -> None:
    """Write the lines that wait, if this thread may."""
    if any(busy() for busy in _busy_checks):
        return
    while waiting_lines:
        try:
            line = waiting_lines.popleft()
        except IndexError:  # another thread was faster
            return
        line()


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Pass a record to filters and handlers, now or once the thread holds nothing."""
    if any(busy() for busy in _busy_checks):
        waiting_lines.append(partial(_pass_on, handle, record))
    else:
        _pass_on(handle, record)


def _pass_on(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Pass a record to filters and handlers; report what they raise."""
    try:
        handle(record)
    except Exception:  # noqa: BLE001  (it is the application's, and must not stop bide)
        _report(record.msg)


def _record(make: Callable[..., logging.LogRecord], *args: object) -> logging.LogRecord:
    """Make a record; a plain one if the application's factory raises.

    Args:
        make: the logger's method, which calls the factory.
        args: as for `Logger.makeRecord`; the first eight are those of `LogRecord`.
    """
    try:
        return make(*args)
    except Exception:  # noqa: BLE001  (it is the application's, and must not stop bide)
        _, _, _, _, message, *_ = args
        _report(message)
        return logging.LogRecord(*args[:8])  # type: ignore[arg-type]


def _report(message: object) -> None:
    """Say on stderr that a line was not logged, as `logging` does for handlers.

    Called while an exception is handled, whose traceback is written, too.
    """
    if logging.raiseExceptions and sys.stderr is not None:
        try:
            sys.stderr.write(f"--- Logging error: {message!r}\n{traceback.format_exc()}")
        except OSError:  # stderr is closed or full
            pass
