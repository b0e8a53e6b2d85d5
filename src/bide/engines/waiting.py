"""Waiting for sockets and pipes of any number: `select.select` takes none above 1,023.

On systems without `poll`, such as Windows, only sockets work.
"""

import select
import selectors
from collections.abc import Callable
from functools import partial

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


def readable(*descriptors: int, seconds: float | None = None) -> bool:
    """Return whether there is something to read, or an end.

    Args:
        descriptors: of sockets and pipes.
        seconds: the maximum time to wait; `None`: no maximum.
    """
    with _Selector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def watch(descriptor: int, *, seconds: float = 0) -> Callable[[], object]:
    """Return a function that returns whether there is something to read, or an end.

    Args:
        descriptor: of a socket or a pipe.
        seconds: for which the function waits until there is.
    """
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return partial(poll.poll, seconds * 1000)
    selector = _Selector()
    selector.register(descriptor, selectors.EVENT_READ)
    return partial(selector.select, seconds)
