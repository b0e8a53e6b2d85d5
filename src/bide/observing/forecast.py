"""Forecasts of several queues together."""

from collections.abc import Sequence

from bide.model.replies import Forecasted


def together(found: Sequence[Forecasted]) -> Forecasted:
    """Return how many messages of several queues fall due when.

    Args:
        found: a forecast of each queue, at least one, all with the same buckets.

    Example:
        >>> together([Forecasted(0, 1, [2, 3], 4), Forecasted(0, 0, [10, 0], 5)])
        Forecasted(start=0, overdue=1, buckets=[12, 3], later=9)
    """
    return Forecasted(
        found[0].start,
        sum(one.overdue for one in found),
        [sum(column) for column in zip(*[one.buckets for one in found], strict=True)],
        sum(one.later for one in found),
    )
