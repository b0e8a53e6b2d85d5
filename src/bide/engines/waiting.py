"""Waiting for sockets and pipes, whatever their numbers: `select.select` takes none above 1,023.

Where a system has no `poll`, as Windows, it takes sockets alone.
"""

import select
import selectors
from collections.abc import Callable
from functools import partial

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


def readable(*descriptors: int, seconds: float | None = None) -> bool:
    """Tell whether there is something to read, or an end.

    Args:
        descriptors: of sockets and pipes.
        seconds: how long to wait for it; `None`: until it is there.
    """
    with _Selector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def watch(descriptor: int, *, waits: bool = False) -> Callable[[], object]:
    """Return what tells, again and again, whether there is something to read, or an end.

    Args:
        descriptor: of a socket or a pipe.
        waits: whether it waits until there is; else it tells at once.
    """
    limit = None if waits else 0
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return partial(poll.poll, limit)
    selector = _Selector()
    selector.register(descriptor, selectors.EVENT_READ)
    return partial(selector.select, limit)
