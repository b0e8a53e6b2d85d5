"""Open files: a process that has many of them gets high numbers for new ones."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["low_ones_taken"]


@contextmanager
def low_ones_taken() -> Iterator[None]:
    """Hold all descriptors below 1,024, above which `select.select` takes none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with ExitStack() as held:
            number = 0
            while number < 1024:
                number = os.dup(0)
                held.callback(os.close, number)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
