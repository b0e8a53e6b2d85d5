"""The error of a port that cannot be listened on."""

import errno
import os

from bide.model.errors import InvalidArgument


def unlistenable(what: str, error: OSError) -> InvalidArgument:
    """Return an error with the cause and the fix.

    Args:
        what: the beginning of the text, with the port.
        error: the error of the attempt to listen.

    Example:
        >>> print(unlistenable("port=80 is no port to listen on", PermissionError(13, "")))
        port=80 is no port to listen on: Permission denied; take a port from 1024 on
    """
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        fix = "another program uses it; take another port"
    elif error.errno in (errno.EACCES, errno.EPERM):
        fix = "take a port from 1024 on"
    else:
        fix = "the address must belong to this machine"
    return InvalidArgument(f"{what}: {why}; {fix}")
