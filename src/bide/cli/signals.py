"""Signals that end a command: they unwind it, so that it leaves nothing half done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["ENDING", "leaving"]

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command beside Ctrl-C: somebody has told it to, or its terminal is gone."""


@contextmanager
def leaving(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the block as Ctrl-C does. One that is ignored stays so: nohup.

    Args:
        error: makes what is raised, of the signal's number.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise error(number)

    ignored = signal.SIG_IGN
    before = {
        number: signal.signal(number, leave)
        for number in ENDING
        if signal.getsignal(number) is not ignored
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
