"""Waiting for sockets and pipes, whatever their numbers: `select.select` takes none above 1,023."""

import select


def readable(*descriptors: int, seconds: float | None = None) -> bool:
    """Tell whether there is something to read, or an end.

    Args:
        descriptors: of sockets and pipes.
        seconds: how long to wait for it; `None`: until it is there.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))
