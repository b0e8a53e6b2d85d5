"""Counts of queues for metrics, and why nothing can listen at an address."""

import os
from collections.abc import Iterable
from socket import gaierror

from bide.lane.lane import Lane
from bide.model.commands import Count
from bide.model.errors import InvalidArgument
from bide.model.replies import Counts, expect


def counts_of(lane: Lane, queues: Iterable[str]) -> dict[str, Counts]:
    """Read the counts of queues.

    Raises:
        StoreError: the store cannot be read.
    """
    return {queue: expect(Counts, lane.call(Count(queue))) for queue in queues}


def unlistenable(text: str, error: OSError) -> InvalidArgument:
    """Return an error with the cause and the fix.

    Args:
        text: the beginning of the text, with the port.
        error: the error of the attempt to listen.

    Example:
        >>> str(unlistenable("port=80 is no port", PermissionError(13, ""))).partition(";")[0]
        'port=80 is no port: Permission denied'
    """
    number = None if isinstance(error, gaierror) else error.errno  # it has numbers of its own
    cause = os.strerror(number) if number else error.strerror or str(error)
    fix = "take a free port of 1024 or more, at an address of this machine"
    return InvalidArgument(f"{text}: {cause}; {fix}")
