"""The memory engine: a queue in this process, and the specification of all other engines."""

import os
from collections.abc import Callable
from urllib.parse import SplitResult

from bide.engines.memory.engine import MemoryEngine
from bide.engines.registry import options
from bide.model.errors import InvalidArgument, StoreUnavailable

__all__ = ["MemoryEngine", "from_url"]


def from_url(parts: SplitResult) -> Callable[[], MemoryEngine]:
    """Return what opens `memory://`, or `memory://name` where one process wants several.

    Raises:
        InvalidArgument: when the URL says more than a name.
    """
    options(parts)
    if parts.path.strip("/"):
        raise InvalidArgument("memory:// takes only a name: memory://name")
    home = os.getpid()

    def open_engine() -> MemoryEngine:
        if os.getpid() != home:
            raise StoreUnavailable(
                "memory:// exists in the process that made it, and this is a fork of it; open it "
                "after the fork, or share a file: sqlite:///bide.db"
            )
        return MemoryEngine()

    return open_engine
