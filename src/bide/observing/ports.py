"""What is said when nothing can listen on a port."""

import errno
import os

from bide.model.errors import InvalidArgument

__all__ = ["unlistenable"]


def unlistenable(what: str, error: OSError) -> InvalidArgument:
    """Return an error with the cause and what helps.

    Args:
        what: what cannot be had, with the port.
        error: of the attempt to listen.

    Example:
        >>> print(unlistenable("port=80 is no port to listen on", PermissionError(13, "")))
        port=80 is no port to listen on: Permission denied; take one from 1024 on
    """
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        mend = "another program is there, take another port"
    elif error.errno in (errno.EACCES, errno.EPERM):
        mend = "take one from 1024 on"
    else:
        mend = "the address must be one of this machine"
    return InvalidArgument(f"{what}: {why}; {mend}")
