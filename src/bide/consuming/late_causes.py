"""How late deliveries of a queue begin, and why: each millisecond of lateness has one cause."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from bide.consuming.handling import Handling
from bide.consuming.store_client import StoreClient
from bide.model.commands import Explain
from bide.model.errors import StoreError
from bide.model.replies import Explained, expect
from bide.observing.tally import Histogram, Tally
from bide.observing.workers import Span


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
    """When a limit of the queue last released it; 0: no limit is known to have held it."""


def causes_of(
    waited: Waited, pauses: Iterable[Span] = (), unserved: Iterable[Span] = ()
) -> dict[str, float]:
    """Return how many milliseconds have which cause; causes of none are left out.

    A millisecond has the first cause that applies:

    - paused: the queue was paused;
    - limit: a limit of the queue held the message back;
    - no-worker: no worker process served the queue;
    - retry: an earlier attempt, or the delay after it;
    - backlog: the worker was busy with other messages;
    - timer: all that is left, such as the time to wake the worker and to fetch the message.

    Args:
        waited: how the message waited.
        pauses: when the queue was paused.
        unserved: when no worker served it.

    Example:
        >>> causes_of(Waited(0, 0, 70, 71, 80), pauses=[(0, 30)], unserved=[(20, 50)])
        {'paused': 30, 'no-worker': 20, 'backlog': 29, 'timer': 1}
    """
    spans: list[tuple[str, float, float]] = [
        *(("paused", *span) for span in pauses),
        ("limit", waited.retried, waited.freed),
        *(("no-worker", *span) for span in unserved),
        ("retry", waited.due, waited.retried),
        ("backlog", waited.due, waited.asked),
        ("backlog", waited.claimed, waited.began),
        ("timer", waited.due, waited.began),
    ]
    ends = {end for _, *both in spans for end in both if waited.due <= end <= waited.began}
    found: dict[str, float] = {}
    for start, end in pairwise(sorted(ends)):
        cause = next(cause for cause, first, last in spans if first <= start and end <= last)
        found[cause] = found.get(cause, 0) + end - start
    return found


def _waited(one: Handling) -> Waited:
    message, claimed = one.message, one.claimed
    retried = message.due
    if message.failures:
        retried = min(max(retried, message.failures[-1].moment), claimed)
    return Waited(
        message.due if message.planned is None else message.planned,
        retried,
        claimed - (one.arrived - one.asked) * 1000,
        claimed,
        claimed + (one.began - one.arrived) * 1000,
        one.freed,
    )


PROMPT = 0.05
"""Lateness up to so many seconds has the cause `timer`; the other causes are not looked for."""

MOST = 10_000
"""How many of them are gathered at most."""


class LateCauses:
    """Gathers late deliveries, and reads now and then when their queue was paused.

    Deliveries on time cost nothing: the store is asked once for all that were late since `find`.

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
        self._waited: list[Waited] = []
        self._found: dict[str, list[float]] = {}
        self._pauses: list[Span] = []

    async def find(self) -> None:
        """Find the causes for the deliveries that were late since the last call."""
        if self._waited:
            await self._read_pauses()
            self._find()

    def add_to(self, tally: Tally) -> None:
        """Add how late deliveries began, and what was found to be the cause."""
        lateness = [one.lateness for one in self.begun]
        timer = self._found.setdefault("timer", [])
        for one, late in zip(self.begun, lateness, strict=True):
            if one.message.planned is None and late <= PROMPT:
                timer.append(late)
            else:
                self._waited.append(_waited(one))
        self.begun.clear()
        if len(self._waited) >= MOST:
            self._find()
        tally.lateness.observe_all(lateness)
        for cause, found in self._found.items():
            if found:
                tally.causes.setdefault(cause, Histogram()).observe_all(found)
        self._found.clear()

    async def _read_pauses(self) -> None:
        try:
            explained = expect(Explained, await self._store_client.lane.acall(Explain(self._queue)))
        except StoreError:  # a token may not read, or the store is away: as it was last known
            return
        self._pauses = [
            (
                0 if one.since is None else one.since,
                explained.now if one.until is None else one.until,
            )
            for one in explained.pauses
        ]

    def _find(self) -> None:
        backlog = self._found.setdefault("backlog", [])
        timer = self._found.setdefault("timer", [])
        over = max((end for _, end in (*self._pauses, *self.unserved)), default=0.0)
        for waited in self._waited:
            due, retried, asked, claimed, began, freed = waited
            if retried <= due and freed <= due and over <= due <= claimed:  # as in a backlog
                asked = min(max(due, asked), claimed)
                if busy := asked - due + began - claimed:
                    backlog.append(busy / 1000)
                if asked < claimed:
                    timer.append((claimed - asked) / 1000)
                continue
            for cause, ms in causes_of(waited, self._pauses, self.unserved).items():
                self._found.setdefault(cause, []).append(ms / 1000)
        self._waited.clear()
