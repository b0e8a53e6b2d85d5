"""Why a process cannot listen at an address: for metrics and health."""

import os
from socket import gaierror

from bide.model.errors import InvalidArgument


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
