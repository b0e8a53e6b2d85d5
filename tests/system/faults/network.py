"""Calls over a faulty network: what has no answer is in doubt, and each answer is true."""

from collections.abc import Callable
from typing import TypeVar

import bide
from tests.system.faults.strikes import Struck

R = TypeVar("R")


class Doubts:
    """Calls whose outcome the store may not know."""

    def __init__(self) -> None:
        self.answered = self.unknown = 0

    def during(self, call: Callable[[], R]) -> R | Struck:
        """Return the answer of a call, or that it has none."""
        try:
            answer = call()
        except bide.StoreError:
            self.unknown += 1
            return Struck.STRUCK
        self.answered += 1
        return answer
