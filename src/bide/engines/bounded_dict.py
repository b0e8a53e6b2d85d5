"""A dict of bounded size, for keys that clients choose, such as the names of queues."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST = 50_000
"""The number of queues of which an engine remembers something."""


class BoundedDict(OrderedDict[K, V]):
    """Keeps the values that were set most recently.

    Args:
        most: the number of values to keep; by default `MOST`.

    Example:
        >>> known = BoundedDict(2)
        >>> known.update(a=1, b=2)
        >>> known["a"] = known["c"] = 3
        >>> list(known)
        ['a', 'c']
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self._most = MOST if most is None else most

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value; forget the one that was set longest ago if there are too many."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
