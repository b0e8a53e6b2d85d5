"""Turn signals into exceptions, so that a command cleans up before it ends."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

TERMINATION_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end a command besides Ctrl-C: a request to stop, and a closed terminal.

Windows has no SIGHUP.
"""

_Handler = Callable[[int, FrameType | None], None]


def _end(number: int) -> BaseException:
    return SystemExit(128 + number)


@contextmanager
def raise_on_termination(error: Callable[[int], BaseException] = _end) -> Iterator[None]:
    """Raise an exception in the block on SIGTERM and SIGHUP, as Ctrl-C does.

    An ignored signal stays ignored, as under nohup.

    Args:
        error: makes the exception from the number of the signal; by default the exit.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise error(number)

    with _handled(TERMINATION_SIGNALS, leave):
        yield


class DeferredInterrupt:
    """Lets a step of work end before Ctrl-C, SIGTERM or SIGHUP is obeyed; a second one is at once.

    Example:
        >>> interrupt = DeferredInterrupt()
        >>> with interrupt.listening(), interrupt.deferred():
        ...     for batch in ([1, 2], [3]):
        ...         interrupt.check()
    """

    def __init__(self) -> None:
        self._deferring = False
        self._requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block on a signal, or later if it is deferred."""

        def receive(number: int, frame: FrameType | None) -> None:
            if self._requested or not self._deferring:
                raise KeyboardInterrupt
            self._requested = True

        with _handled((signal.SIGINT, *TERMINATION_SIGNALS), receive):
            yield

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold a signal back until the block ends or calls `check`."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._requested:
            raise KeyboardInterrupt


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: _Handler) -> Iterator[None]:
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
