"""How late deliveries of a queue begin, and why: each millisecond of lateness has one cause."""

import asyncio
import operator
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

from bide.consuming.handling import Handling
from bide.consuming.store_client import StoreClient
from bide.model.commands import Explain
from bide.model.errors import InvalidArgument, StoreError
from bide.model.replies import Explained, expect
from bide.model.times import DAY_MS
from bide.model.window import Window
from bide.observing.tally import Histogram, Tally
from bide.observing.workers import Span

Waited = tuple[float, float, float, float, float, float]
"""How a message waited for its handler, in Unix milliseconds of the store's clock:

- the due time of the put;
- when the last attempt was over with its delay; the due time if there was none;
- when the worker had asked for messages;
- when it got this one, if the queue has limits; 0: it has none;
- when it got this one;
- when the handler was started.
"""

CAUSES = "retry", "backlog", "limit", "timer", "backlog"
"""Why a message waited until each time of `Waited` but the first."""

Block = tuple[str, float, float]
"""A time in which no worker could claim from a queue: its cause, start and end."""


def blocks_of(
    pauses: Iterable[Span], unserved: Iterable[Span], closed: Iterable[Span] = ()
) -> list[Block]:
    """Return the times when a window was closed, and the others when a queue was paused or no
    worker served it.

    Example:
        >>> blocks_of(pauses=[(0, 30)], unserved=[(20, 50)])
        [('paused', 0, 20), ('paused', 20, 30), ('no-worker', 30, 50)]
    """
    spans = [
        *(("window", *span) for span in closed),
        *(("paused", *span) for span in pauses),
        *(("no-worker", *span) for span in unserved),
    ]
    blocks = []
    for start, end in pairwise(sorted({end for _, *both in spans for end in both})):
        causes = [cause for cause, first, last in spans if first <= start and end <= last]
        blocks += [(cause, start, end) for cause in causes[:1]]
    return blocks


def causes_of(late: Sequence[Waited], blocks: Sequence[Block] = ()) -> dict[str, list[float]]:
    """Return how many milliseconds of each delivery have which cause.

    A millisecond has the first cause that applies:

    - window: the window of the message, or of its handler, was closed;
    - paused: the queue was paused;
    - no-worker: no worker process served the queue;
    - retry: an earlier attempt, or the delay after it; or `Queue.recover` has put it off;
    - backlog: the worker was busy with other messages;
    - limit: the worker had asked for messages of a queue that has limits;
    - timer: all that is left, such as the time to wake the worker and to fetch the message.

    Args:
        late: how each message waited. Column by column, many cost little.
        blocks: see `blocks_of`.

    Example:
        >>> causes_of([(0, 0, 70, 0, 71, 80)], [("paused", 0, 30), ("no-worker", 30, 50)])
        {'paused': [30], 'no-worker': [20], 'backlog': [29], 'timer': [1]}
    """
    parts_by_cause: dict[str, list[float]] = {}

    def add(cause: str, parts: list[float]) -> None:
        if cause in parts_by_cause:
            parts = [*map(operator.add, parts_by_cause[cause], parts)]
        parts_by_cause[cause] = parts

    at: Sequence[float]
    at, *columns = zip(*late, strict=True)
    for cause, column in zip(CAUSES, columns, strict=True):
        if not any(map(operator.gt, column, at)):
            continue
        until = [end if end > start else start for start, end in zip(at, column, strict=True)]
        remaining = [*map(operator.sub, until, at)]
        for block, first, last in blocks:
            if min(at) < last and first < max(until):
                both = zip(at, until, strict=True)
                shared = [max(0, min(end, last) - max(start, first)) for start, end in both]
                add(block, shared)
                remaining = [*map(operator.sub, remaining, shared)]
        add(cause, remaining)
        at = until
    return parts_by_cause


def _waited(handling: Handling) -> Waited:
    """Return the times between which a delivery waited, in the order of `Waited`."""
    message, claimed = handling.message, handling.claimed
    planned = retried = message.due
    if message.failures:
        retried = min(max(retried, message.failures[-1].moment), claimed)
    if message.planned is not None:
        planned = message.planned
    began = claimed + (handling.began - handling.arrived) * 1000
    let_go = claimed if handling.limited else 0
    return planned, retried, handling.asked, let_go, claimed, began


def _window_of(handling: Handling) -> Window | None:
    """Return the window of a message, which this process could read when it claimed it."""
    try:
        return handling.message.window
    except InvalidArgument:  # a server has delivered it, which knows more
        return None


PROMPT = 0.05
"""Lateness up to so many seconds has the cause `timer`; the other causes are not looked for."""

LONGEST = 60 * DAY_MS
"""For how long before a delivery it is known when its window was closed, in milliseconds."""

MOST_CLOSINGS = 60
"""How many of these times, the last ones, are known at most of a window: one a day, or more in less
time."""

MOST_WINDOWS = 100
"""For how many windows of messages is looked at a time; of others, nothing is known."""

MOST = 10_000
"""How many of them are gathered at most."""


class LateCauses:
    """Counts how late deliveries of a queue begin, and reads now and then when it was paused.

    Deliveries on time cost nothing: the store is asked once for all that were late since `find`.

    Args:
        queue: its name.
        store_client: asks the store.
        tally: gets the lateness and its causes.
        window: in which the queue is worked on; `None`: always.
    """

    def __init__(
        self, queue: str, store_client: StoreClient, tally: Tally, window: Window | None = None
    ) -> None:
        self.unserved: Sequence[Span] = ()
        """When no worker served the queue, as far as this process knows."""
        self.begun: list[Handling] = []
        """Deliveries whose handlers were started; `count` looks at all of them together."""
        self._queue = queue
        self._store_client = store_client
        self._tally = tally
        self._window = window
        self._late: dict[Window | None, list[Waited]] = defaultdict(list)
        """By the window of the message."""
        self._pauses: list[Span] = []

    async def find(self) -> None:
        """Find the causes for the deliveries that were late since the last call."""
        if not self._late:
            return
        # Where a token may not read or the store is away, the pauses are those of the last time.
        with suppress(StoreError):
            explained = expect(Explained, await self._store_client.lane.acall(Explain(self._queue)))
            self._pauses = [
                (
                    pause.since or 0,
                    explained.now if pause.until is None else min(pause.until, explained.now),
                )
                for pause in explained.pauses
            ]
        for window, late in self._take_late():
            self._count_by_cause(window, late)
            await asyncio.sleep(0)  # deliveries go on

    def count(self) -> None:
        """Count how late deliveries began."""
        lateness = [handling.lateness for handling in self.begun]
        timer = []
        for handling, late in zip(self.begun, lateness, strict=True):
            if handling.message.planned is None and late <= PROMPT:
                timer.append(late)
            else:
                window = _window_of(handling)
                if window not in self._late and len(self._late) >= MOST_WINDOWS:
                    window = None
                self._late[window].append(_waited(handling))
        self.begun.clear()
        self._tally.lateness.observe(*lateness)
        self._observe("timer", timer)
        if sum(map(len, self._late.values())) >= MOST:
            for window, waits in self._take_late():
                self._count_by_cause(window, waits)

    def _take_late(self) -> list[tuple[Window | None, list[Waited]]]:
        """Return how late deliveries waited, by the window of their messages, and forget it."""
        late = list(self._late.items())
        self._late.clear()
        return late

    def _count_by_cause(self, window: Window | None, late: Sequence[Waited]) -> None:
        """Count the lateness of deliveries by its causes, with the pauses that were read last."""
        blocks = blocks_of(self._pauses, self.unserved, self._closed(window, late))
        for cause, parts in causes_of(late, blocks).items():
            self._observe(cause, [ms / 1000 for ms in parts if ms])

    def _closed(self, window: Window | None, late: Sequence[Waited]) -> Iterator[Span]:
        """Yield when a window of messages, or that of the handlers, was closed meanwhile."""
        end = max(waited[-1] for waited in late)
        start = max(min(waited[0] for waited in late), end - LONGEST)
        for closing_window in {window, self._window}:
            if closing_window is not None:
                spans = closing_window.closed_between(round(start), round(end))
                yield from deque(spans, MOST_CLOSINGS)  # the last ones: most are not late for long

    def _observe(self, cause: str, seconds: list[float]) -> None:
        if seconds:
            self._tally.causes.setdefault(cause, Histogram()).observe(*seconds)
