"""Where a call spends its time: the moments at which it passes functions on its way."""

import functools
import inspect
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Stamps", "pieces"]

Stamp = tuple[str, float]
"""The name of a piece of the way, and when it ended by the monotonic clock, which is the same for
all processes of a machine."""


class Stamps:
    """The moments of one call after the other."""

    def __init__(self) -> None:
        self.calls: list[list[Stamp]] = []
        self._current: list[Stamp] = []

    def mark(self, piece: str) -> None:
        """Note that a piece of the way ends now."""
        self._current.append((piece, time.perf_counter()))

    def finish(self) -> None:
        """Begin with the next call."""
        self.calls.append(self._current)
        self._current = []

    def watch(self, owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        """Replace a function, so that a piece ends when it is called, or when it returns.

        Args:
            owner: the class or module in which callers find it.
            name: the function's name there.
            before: the piece that ends when it is called; "": none.
            after: the piece that ends when it returns; "": none.
        """
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if before:
                self.mark(before)
            result = function(*args, **named)
            if after:
                self.mark(after)
            return result

        @functools.wraps(function)
        async def acall(*args: Any, **named: Any) -> Any:
            if before:
                self.mark(before)
            result = await function(*args, **named)
            if after:
                self.mark(after)
            return result

        setattr(owner, name, acall if inspect.iscoroutinefunction(function) else call)


def pieces(calls: Sequence[Sequence[Stamp]]) -> dict[str, float]:
    """Return the median microseconds of each piece, of the calls that took the most common way.

    The first stamp of a call is its beginning.
    """
    ways = Counter(tuple(piece for piece, _ in call) for call in calls)
    ((way, _),) = ways.most_common(1)
    usual = [call for call in calls if tuple(piece for piece, _ in call) == way]
    return {
        way[number]: statistics.median(
            (call[number][1] - call[number - 1][1]) * 1e6 for call in usual
        )
        for number in range(1, len(way))
    }
