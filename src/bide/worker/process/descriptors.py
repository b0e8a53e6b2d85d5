"""Use as many file descriptors as the system allows."""

import resource


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one; child processes inherit it.

    The soft limit is 1,024 on most systems, for programs that use select(); bide does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS has a lower limit than it says
            return
