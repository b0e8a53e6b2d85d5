"""The handle of a timing wheel's timer, and the call that an executor gets."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bide.timing.hierarchy import Entry

if TYPE_CHECKING:
    from bide.timing.timing_wheel import TimingWheel

__all__ = ["TimerHandle", "call"]

logger = logging.getLogger("bide.timing")


class TimerHandle(Entry):
    """One timer of a `TimingWheel`.

    Attributes:
        fn: what is called.
        args: what it is called with.
    """

    __slots__ = ("_wheel", "args", "fn")

    fn: Callable[..., object]
    args: tuple[object, ...]
    _wheel: "TimingWheel"

    @property
    def due(self) -> float:
        """When it is due, in seconds of the wheel's `Clock.monotonic()`: the end of its tick."""
        return self._wheel._moment(self._due)

    @property
    def pending(self) -> bool:
        """Whether it has neither started nor been cancelled."""
        return self._slot is not None

    def cancel(self) -> bool:
        """Cancel the timer: short for `TimingWheel.cancel`."""
        return self._wheel.cancel(self)

    def __repr__(self) -> str:
        return f"<TimerHandle {self.fn!r} due={self.due:.3f}>"


def call(fn: Callable[..., object], args: tuple[object, ...]) -> None:
    """Call a timer's function on an executor; log what it raises, and raise it again."""
    try:
        fn(*args)
    except BaseException:
        logger.exception("timer %r failed", fn)
        raise
