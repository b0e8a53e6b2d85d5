"""The memory engine: a queue in this process, and the specification of all other engines."""

from bide.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
