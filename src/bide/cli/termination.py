"""Turn SIGTERM and SIGHUP into exceptions, so that a command cleans up before it ends."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command besides Ctrl-C: a request to stop, and a closed terminal."""


@contextmanager
def raise_on_termination(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Raise an exception in the block on SIGTERM and SIGHUP, as Ctrl-C does.

    An ignored signal stays ignored, as under nohup.

    Args:
        error: makes the exception from the number of the signal.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise error(number)

    ignored = signal.SIG_IGN
    before = {
        number: signal.signal(number, leave)
        for number in TERMINATION_SIGNALS
        if signal.getsignal(number) is not ignored
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
