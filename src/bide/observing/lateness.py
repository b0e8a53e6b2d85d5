"""Why deliveries begin late: each millisecond between due time and start has one cause."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

CAUSES = ("paused", "limit", "no-worker", "retry", "backlog", "timer")
"""The causes, in the order in which they claim a millisecond:

- paused: the queue was paused;
- limit: a limit of the queue held the message back;
- no-worker: no worker process served the queue;
- retry: an earlier attempt, or the delay after it;
- backlog: the worker was busy with other messages;
- timer: all that is left, such as the time to wake the worker and to fetch the message."""

Span = tuple[float, float]
"""From when to when, in Unix milliseconds."""


class Waited(NamedTuple):
    """How a message waited for its handler. Times are Unix milliseconds of the store's clock."""

    due: float
    """The due time of the put."""
    retried: float
    """When the last attempt was over with its delay; `due` if there was none."""
    asked: float
    """When the worker had asked for messages."""
    claimed: float
    """When it got this one."""
    began: float
    """When the handler was started."""
    freed: float = 0
    """When the limits of the queue last let it go; 0: none is known to have held it."""


def causes_of(
    waited: Waited, pauses: Iterable[Span] = (), unserved: Iterable[Span] = ()
) -> dict[str, float]:
    """Return how many milliseconds have which cause; those with none are left out.

    Args:
        waited: how the message waited.
        pauses: when the queue was paused.
        unserved: when no worker served it.

    Example:
        >>> causes_of(Waited(0, 0, 70, 71, 80), pauses=[(10, 30)], unserved=[(20, 50)])
        {'paused': 20, 'no-worker': 20, 'backlog': 39, 'timer': 1}
    """
    free: list[Span] = [(waited.due, waited.began)] if waited.began > waited.due else []
    found: dict[str, float] = {}
    parts: Sequence[tuple[str, Iterable[Span]]] = (
        ("paused", pauses),
        ("limit", [(waited.retried, waited.freed)]),
        ("no-worker", unserved),
        ("retry", [(waited.due, waited.retried)]),
        ("backlog", [(waited.due, waited.asked), (waited.claimed, waited.began)]),
    )
    for cause, spans in parts:
        before = _length(free)
        for span in spans:
            free = _without(free, span)
        if taken := before - _length(free):
            found[cause] = taken
    if left := _length(free):
        found["timer"] = left
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def _without(spans: Iterable[Span], taken: Span) -> list[Span]:
    """Return what is left of spans without another one."""
    first, last = taken
    left: list[Span] = []
    for start, end in spans:
        if start < min(end, first):
            left.append((start, min(end, first)))
        if max(start, last) < end:
            left.append((max(start, last), end))
    return left if first < last else list(spans)
