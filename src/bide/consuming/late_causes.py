"""How late deliveries of a queue begin, and why: each millisecond of lateness has one cause."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bide.clock import sleep
from bide.consuming.handling import Handling
from bide.consuming.store_client import StoreClient
from bide.model.commands import Explain
from bide.model.errors import StoreError
from bide.model.replies import Explained, expect
from bide.observing.tally import Histogram, Tally
from bide.observing.workers import Span

CAUSES = ("paused", "limit", "no-worker", "retry", "backlog", "timer")
"""The causes, in the order in which they claim a millisecond:

- paused: the queue was paused;
- limit: a limit of the queue held the message back;
- no-worker: no worker process served the queue;
- retry: an earlier attempt, or the delay after it;
- backlog: the worker was busy with other messages;
- timer: all that is left, such as the time to wake the worker and to fetch the message."""


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


PROMPT = 0.05
"""Seconds of lateness that are the timer's without a closer look."""

GATHER = 5.0
"""Seconds for which late deliveries are gathered before their causes are looked for."""

MOST = 10_000
"""How many of them are gathered at most."""


class LateCauses:
    """Gathers late deliveries, and reads now and then when their queue was paused.

    Deliveries on time cost nothing: the store is asked once for all that were late in five seconds.

    Args:
        queue: its name.
        store_client: asks the store.
    """

    def __init__(self, queue: str, store_client: StoreClient) -> None:
        self.unserved: Sequence[Span] = ()
        """When no worker served the queue, as far as this process knows."""
        self._queue = queue
        self._store_client = store_client
        self.begun: list[Handling] = []
        """Deliveries whose handlers were started; `add_to` looks at all of them together."""
        self._waited: list[tuple[float, ...]] = []
        self._found: dict[str, list[float]] = {}
        self._pauses: list[Span] = []
        self._late = asyncio.Event()

    async def keep(self) -> None:
        """Look for causes every few seconds, for as long as this runs."""
        while True:
            await self._late.wait()
            await sleep(self._store_client.clock, GATHER)
            self._late.clear()
            await self._read_pauses()
            self._find()

    def add_to(self, tally: Tally) -> None:
        """Add how late deliveries began, and what was found to be the cause."""
        lateness: list[float] = []
        timer = self._found.setdefault("timer", [])
        for one in self.begun:
            message, claimed = one.message, one.claimed
            due, ran = message.due, one.began - one.arrived
            late = (claimed - due) / 1000 + ran
            lateness.append(late)
            planned = message.planned
            if planned is None and late <= PROMPT:
                timer.append(late)
                continue
            failures = message.failures
            retried = min(max(due, failures[-1].moment), claimed) if failures else due
            self._waited.append(
                (due if planned is None else planned, retried,
                 claimed - (one.arrived - one.asked) * 1000, claimed, claimed + ran * 1000,
                 one.freed)
            )  # fmt: skip
        self.begun.clear()
        if self._waited:
            self._late.set()
        if len(self._waited) >= MOST:
            self._find()
        tally.lateness.observe_all(lateness)
        for cause, found in self._found.items():
            if found:
                tally.causes.setdefault(cause, Histogram()).observe_all(found)
        self._found.clear()

    async def _read_pauses(self) -> None:
        try:
            told = expect(Explained, await self._store_client.lane.acall(Explain(self._queue)))
        except StoreError:  # a token may not read, or the store is away: as it was last known
            return
        self._pauses = [
            (0 if one.since is None else one.since, told.now if one.until is None else one.until)
            for one in told.pauses
        ]

    def _find(self) -> None:
        backlog = self._found.setdefault("backlog", [])
        timer = self._found.setdefault("timer", [])
        over = max((end for _, end in (*self._pauses, *self.unserved)), default=0.0)
        for waited in self._waited:
            due, retried, asked, claimed, began, freed = waited
            # In a backlog all are like this.
            if retried <= due and freed <= due and over <= due <= claimed:
                asked = due if asked < due else claimed if asked > claimed else asked
                if busy := asked - due + began - claimed:
                    backlog.append(busy / 1000)
                if asked < claimed:
                    timer.append((claimed - asked) / 1000)
                continue
            for cause, ms in causes_of(Waited(*waited), self._pauses, self.unserved).items():
                self._found.setdefault(cause, []).append(ms / 1000)
        self._waited.clear()
