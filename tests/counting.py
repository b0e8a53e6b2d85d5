"""Count the calls that a piece of work takes: unlike time, they are the same on a busy machine."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_calls(work: Callable[[], object]) -> Counter[str]:
    """Return how often each function was called in this thread, by name.

    Functions written in C count like those written in Python.

    Example:
        >>> count_calls(lambda: [abs(number) for number in range(3)])["abs"]
        3
    """
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls[argument.__name__] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    del calls["setprofile"]
    return calls
