"""The timers of one process: `bide.timing` beside what the standard library has.

Times of single operations are processor time of this process, so that what else runs on the machine
counts less; lateness is real time. Run it with `python -m benchmarks timing`.
"""

from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.timing import inside, lateness, memory, operations

__all__ = ["run"]

MEASUREMENTS = (
    *operations.MEASUREMENTS,
    *memory.MEASUREMENTS,
    *inside.MEASUREMENTS,
    *lateness.MEASUREMENTS,
)


def run(only: str = "") -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in MEASUREMENTS:
        if only in measurement.__name__:
            yield from measurement()
