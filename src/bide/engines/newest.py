"""What engines remember of queues: a cache that is bounded, for the names of queues have no end."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST = 50_000
"""How many values are kept."""


class Newest(OrderedDict[K, V]):
    """Keeps the values that were set last.

    Example:
        >>> known = Newest()
        >>> for number in range(MOST + 2):
        ...     known[number] = True
        >>> len(known), 1 in known, 2 in known
        (50000, False, True)
    """

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value; forget the one that was set longest ago if there are too many."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > MOST:
            self.popitem(last=False)
