"""The queue on a PostgreSQL server of its own, by a Unix socket, with fsync."""

from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.postgres import claiming, forwarding, peers, pieces, putting

__all__ = ["run"]

MEASUREMENTS = (
    *putting.MEASUREMENTS,
    *claiming.MEASUREMENTS,
    *forwarding.MEASUREMENTS,
    *peers.MEASUREMENTS,
    *pieces.MEASUREMENTS,
)


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in MEASUREMENTS:
        if only in measurement.__name__:
            yield from measurement()
