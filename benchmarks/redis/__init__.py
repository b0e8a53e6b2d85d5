"""The queue on a Redis server of its own, by a Unix socket and without a disk."""

from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.redis import batches, compared, limited, scale, server_time, waiting, worker

__all__ = ["run"]

MEASUREMENTS = (
    *batches.MEASUREMENTS,
    *worker.MEASUREMENTS,
    *scale.MEASUREMENTS,
    *server_time.MEASUREMENTS,
    *limited.MEASUREMENTS,
    *waiting.MEASUREMENTS,
    *compared.MEASUREMENTS,
)


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in MEASUREMENTS:
        if only in measurement.__name__:
            yield from measurement()
