"""When no worker served a queue, as far as the reports of worker processes tell.

A process reports when it began, and the gaps before that. A process that ended without a farewell
is known by its last report until that is deleted; one that took its leave is not.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bide.lane.lane import Lane
from bide.model.commands import Scan
from bide.model.errors import StoreError
from bide.model.replies import Page, expect
from bide.observing.heartbeat import QUEUE, READ_MOST, SILENT, Report, read
from bide.observing.lateness import Span

GAPS = 5
"""How many gaps of a queue a process reports at most."""

_log = logging.getLogger("bide.worker")


class Seen(NamedTuple):
    """What is known of another process."""

    report: Report
    until: float
    """When it was last known to be at work, in Unix milliseconds; infinity: it is."""


async def read_gaps(lane: Lane, queues: Sequence[str], began: int) -> dict[str, list[Span]]:
    """Read the reports of other processes; return for each queue when no worker served it.

    Args:
        lane: the lane to the store.
        queues: those that this process serves.
        began: when this process began, in Unix milliseconds.
    """
    others: list[Seen] = []
    try:
        page = expect(Page, await lane.acall(Scan(QUEUE, "next", limit=READ_MOST)))
    except StoreError as error:  # such as a token that may not read: the others are unknown
        _log.debug("the reports of other workers could not be read: %s", error)
    else:
        found = [(read(message), message.due) for message in page.messages]
        others = [seen_of(report, due, began) for report, due in found if report is not None]
    return gaps_before(queues, others, began)


def seen_of(report: Report, due: int, now: int) -> Seen:
    """Return what a report tells: its message is due when the process has been silent for long."""
    return Seen(report, float("inf") if due > now else due - SILENT)


def gaps_before(queues: Iterable[str], others: Sequence[Seen], began: int) -> dict[str, list[Span]]:
    """Return for each queue when no worker served it before this process began.

    Args:
        queues: those that this process serves.
        others: the other processes that are or were at work.
        began: when this process began, in Unix milliseconds.

    Example:
        >>> old = Report({"web1:7": ["q"]}, began=100)
        >>> gaps_before(["q", "r"], [Seen(old, 500.0)], 900)
        {'q': [(0.0, 100.0), (500.0, 900.0)], 'r': [(0.0, 900.0)]}
    """
    return {queue: _gaps(queue, others, began) for queue in queues}


def _gaps(queue: str, others: Sequence[Seen], began: int) -> list[Span]:
    served: list[Span] = []
    known: list[Span] = []
    for one in others:
        if any(queue in works_on for works_on in one.report.workers.values()):
            start = float(one.report.began)
            served.append((start, min(one.until, began)))
            known += [(float(first), float(last)) for first, last in one.report.gaps.get(queue, ())]
    # Before the first process that is known of, what that one had found out.
    first = min((start for start, _ in served), default=float(began))
    before = [(start, end) for start, end in known if end <= first]
    gaps = sorted(set(before)) if before else [(0.0, first)]
    at = first
    for start, end in sorted(served):
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    if at < began:
        gaps.append((at, float(began)))
    return gaps[-GAPS:]
