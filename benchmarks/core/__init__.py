"""The queue on SQLite, confirmed by the disk, and in memory. Bodies have 256 bytes."""

from collections.abc import Iterator

from benchmarks.core import claiming, growth, looking, memory, putting, waiting
from benchmarks.figure import Figure

__all__ = ["run"]

MEASUREMENTS = (
    *putting.MEASUREMENTS,
    *claiming.MEASUREMENTS,
    *growth.MEASUREMENTS,
    *waiting.MEASUREMENTS,
    *memory.MEASUREMENTS,
    *looking.MEASUREMENTS,
)


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in MEASUREMENTS:
        if only in measurement.__name__:
            yield from measurement()
