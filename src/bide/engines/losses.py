"""Losses: changes that a store had confirmed and no longer has, as after a bad failover.

A store numbers its changes (Redis: by shard; others may use a log position or the identity of a
file). An engine remembers the highest number that the store has confirmed to it, and reports a loss
if the store comes back with a smaller one.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from bide.logs import logger

_log = logger("bide.store")
_lock = threading.Lock()
_counts: dict[str, int] = {}
_listeners: list[Callable[[], object]] = []


def report(store: str, queue: str, count: int) -> None:
    """Log and count lost changes, and call the listeners of this process.

    Args:
        store: its URL, without its password.
        queue: the queue that was changed.
        count: how many changes are lost, at least.
    """
    with _lock:
        _counts[queue] = _counts.get(queue, 0) + count
        listeners = tuple(_listeners)
    _log.error(
        "%s: queue %s: the store has lost at least %d changes that it had confirmed (a stale "
        "replica took over, or the store was restored from an older copy or emptied); sources are "
        "asked again now, and what has no source has to be put again: see the page Guarantees",
        store,
        queue,
        count,
    )
    for listener in listeners:
        listener()


def counted() -> dict[str, int]:
    """Return how many changes this process has seen to be lost, at least, by queue."""
    with _lock:
        return dict(_counts)


def together(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return what several processes have seen to be lost, at least, by queue.

    It is no sum: they see the same losses, though not all of them each.

    Example:
        >>> together([{"orders": 5}, {"orders": 4, "mails": 1}])
        {'orders': 5, 'mails': 1}
    """
    most: dict[str, int] = {}
    for part in parts:
        for queue, count in part.items():
            most[queue] = max(most.get(queue, 0), count)
    return most


@contextmanager
def listening(listener: Callable[[], object]) -> Iterator[None]:
    """Call `listener` at each loss, in the thread that found it."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
