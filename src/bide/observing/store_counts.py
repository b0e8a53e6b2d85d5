"""Read the counts of queues, for metrics."""

from collections.abc import Iterable

from bide.lane.lane import Lane
from bide.model.commands import Count
from bide.model.replies import Counts, expect


def counts_of(lane: Lane, queues: Iterable[str]) -> dict[str, Counts]:
    """Read the counts of queues.

    Raises:
        StoreError: the store cannot be read.
    """
    return {queue: expect(Counts, lane.call(Count(queue))) for queue in queues}
