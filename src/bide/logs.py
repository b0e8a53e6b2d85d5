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

_busy: list[Callable[[], bool]] = []
_GUARDED = "_bide_guarded"


def logger(name: str) -> logging.Logger:
    """Return the logger of a name; no filter or handler of it raises."""
    log = logging.getLogger(name)
    if not hasattr(log, _GUARDED):
        setattr(log, _GUARDED, True)
        log.handle = partial(_handle, log.handle)  # type: ignore[method-assign]
        log.makeRecord = partial(_record, log.makeRecord)  # type: ignore[method-assign]
    return log


def wait_while(busy: Callable[[], bool]) -> None:
    """Let lines wait of threads for which a function returns true."""
    _busy.append(busy)


def write_lines() -> None:
    """Write the lines that wait, if this thread may."""
    if any(busy() for busy in _busy):
        return
    while waiting_lines:
        try:
            line = waiting_lines.popleft()
        except IndexError:  # another thread was faster
            return
        line()


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Pass a record to filters and handlers, now or once the thread holds nothing."""
    if any(busy() for busy in _busy):
        waiting_lines.append(partial(_pass_on, handle, record))
    else:
        _pass_on(handle, record)


def _pass_on(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    try:
        handle(record)
    except Exception:  # noqa: BLE001  (it is the application's, and must not stop bide)
        _report(record.msg)


def _record(make: Callable[..., logging.LogRecord], *args: object) -> logging.LogRecord:
    """Make a record; a plain one if the application's factory raises."""
    try:
        return make(*args)
    except Exception:  # noqa: BLE001  (as above)
        _report(args[4])
        return logging.LogRecord(*args[:8])  # type: ignore[arg-type]


def _report(message: object) -> None:
    """Say on stderr that a line was not logged, as `logging` does for handlers."""
    if logging.raiseExceptions and sys.stderr is not None:
        try:
            sys.stderr.write(f"--- Logging error: {message!r}\n{traceback.format_exc()}")
        except OSError:  # stderr is closed or full
            pass
