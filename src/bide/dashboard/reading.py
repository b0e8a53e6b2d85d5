"""Read the store for pages: names, samples, forecasts, and scans in bounded steps."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock
from bide.dashboard.access import Access
from bide.dashboard.redaction import Redaction
from bide.dashboard.summary import Summary, summary_of
from bide.engines.bounded_dict import BoundedDict
from bide.engines.port import Capabilities
from bide.engines.registry import is_server
from bide.lane.steps import Steps, arun_steps
from bide.model.commands import Command, Explain, ForecastCommand, Queues
from bide.model.errors import AccessDenied
from bide.model.identity import check_prefix
from bide.model.internal_queues import is_listed
from bide.model.past import Past, PastCommand
from bide.model.replies import Explained, Forecasted, Names, Reply, expect
from bide.observing.circumstances import look_further
from bide.observing.sample import RecentWorkers, Sample, Worker, sum_forecasts, take_sample
from bide.queue.search import PAGE_BYTES, Query, search_steps
from bide.server.limits.gate import Visit
from bide.server.limits.request_bodies import ClientGone
from bide.server.problem import Problem
from bide.targets.http.records import Records

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

MOST_RESULTS = 256
"""How many results are kept."""

KEEP_FACTOR = 20
"""A result is kept at least this many times as long as it took to read."""


class RecentResult(NamedTuple):
    """A result that is kept, or that is being read."""

    until: float
    """Until when it is good, in seconds of the clock; endless while it is read."""
    task: "asyncio.Future[Any]"
    """Reads it, or has read it."""


class RecentResults:
    """Caches recent results. Slow reads are repeated less often: they take 5 % of the time at most.

    It reads only on request.

    Args:
        clock: measures how old results are.

    Example:
        >>> async def twice() -> list[int]:
        ...     recent, reads = RecentResults(), []
        ...     async def read() -> int:
        ...         reads.append(1)
        ...         return len(reads)
        ...     return [await recent.get("counts", 60, read) for _ in range(2)]
        >>> asyncio.run(twice())
        [1, 1]
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._entries: BoundedDict[Hashable, RecentResult] = BoundedDict(MOST_RESULTS)
        """The results by what was read."""

    async def get(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return a result that is at most so old, or read it.

        Args:
            key: what is read.
            seconds: how long the result is good.
            read: reads it; callers that come meanwhile wait for the same result.

        Raises:
            ClientGone: the client of this `read` has gone; if it is another's, this reads again.
        """
        while True:
            began = self._clock.monotonic()
            entry = self._entries.get(key)
            is_own = entry is None or entry.until <= began
            if entry is None or is_own:
                entry = RecentResult(inf, asyncio.ensure_future(read()))
                self._entries[key] = entry
                keep = partial(self._keep, key, seconds=seconds, began=began)
                entry.task.add_done_callback(keep)
            try:
                # In a shield: other callers may wait for it, too.
                result: T = await asyncio.shield(entry.task)
            except ClientGone:
                if is_own:
                    raise
                # To await a task that is done lets nothing else run, `_keep` neither: with this
                # entry, the next round would find the same error, and the next, for ever.
                if self._entries.get(key) is entry:
                    del self._entries[key]
            else:
                return result

    def _keep(
        self, key: Hashable, task: "asyncio.Future[Any]", *, seconds: float, began: float
    ) -> None:
        """Keep a result that was read for its time; drop an error, so that the next call reads.

        Args:
            key: what was read.
            task: has read it.
            seconds: how long it is good; longer if to read it took long.
            began: when reading began, by the monotonic clock.
        """
        now = self._clock.monotonic()
        failed = task.cancelled() or task.exception() is not None
        if self._entries.get(key) == RecentResult(inf, task):  # it was not forgotten
            lifetime = 0 if failed else max(seconds, KEEP_FACTOR * (now - began))
            self._entries[key] = RecentResult(now + lifetime, task)

    def forget(self) -> None:
        """Drop all results, because something has changed."""
        self._entries.clear()


QUEUES = 100
"""How many queues a page shows and a sample counts."""

SAMPLE_EVERY = 2.0
"""Seconds between two samples, however many browsers look."""

FORECAST_EVERY = 5.0
"""Seconds between two forecasts."""

FORECAST_PATIENCE = 2.0
"""Seconds that a page waits for its forecast, or for its past."""

PAST_EVERY = 10.0
"""Seconds between two reads of the past, which changes once a minute."""

HISTORY_SAMPLES = 60
"""How many samples are kept for the charts of rates."""

MOST_HISTORIES = 32
"""The maximum number of queue selections whose samples are kept."""

MOST_SEARCHED = 2_000
"""How many messages a search reads for one page."""

READ_BYTES = 1 << 20
"""How many bytes of messages one command reads."""


class Glance(NamedTuple):
    """The queues of a page, and what has happened in them lately. Names are those of the store."""

    names: list[str]
    """The queues of this page."""
    total: int
    """How many queues the selection has."""
    following: str | None
    """After which name the next page begins; `None`: there is none."""
    samples: list[Sample]
    """The last samples, the newest last."""
    workers: list[Worker]

    @property
    def sample(self) -> Sample:
        """The newest sample."""
        return self.samples[-1]

    @property
    def before(self) -> Sample | None:
        """The sample before the newest."""
        return self.samples[-2] if len(self.samples) > 1 else None


class Listed(NamedTuple):
    """What a search has found so far; see `SearchPage`."""

    messages: list[Summary]
    searched: int
    """How many messages were read for it."""
    total: int | None
    """How many messages there are; `None`: they were not counted."""
    cursor: str | None
    """Where to go on; `None`: it has reached the end."""


class _History:
    """The samples of one selection of queues."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=HISTORY_SAMPLES)
        self.workers = RecentWorkers()


class ReadLately:
    """What was read of a store lately, for all visitors of one namespace.

    Args:
        clock: the store's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.recent = RecentResults(clock)
        self.histories: BoundedDict[object, _History] = BoundedDict(MOST_HISTORIES)


class StoreReader:
    """The store, as one request reaches it.

    Args:
        url: the URL of the store.
        clock: the store's clock.
        visit: the request, which executes the commands.
        lately: what was read for other requests of the namespace.
    """

    def __init__(self, url: str, clock: Clock, visit: Visit, lately: ReadLately) -> None:
        self.url = url
        self.clock = clock
        self.execute = visit.execute
        self.recent = lately.recent
        self._visit = visit
        self._histories = lately.histories

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._visit.gate.lane.capabilities

    @property
    def remote(self) -> bool:
        """Whether the store is behind a server, which keeps subscriptions and heartbeats."""
        return is_server(self.url)

    @property
    def records(self) -> Records:
        """The subscriptions of the store."""
        return Records(self._visit.gate.lane, self.clock)

    async def ask(self, kind: type[R], command: Command) -> R:
        """Execute a command, and return its reply."""
        return expect(kind, await self.execute(command))

    async def run(self, steps: Steps[T]) -> T:
        """Execute each command of some steps; return their result."""
        return await arun_steps(steps, self.execute)

    async def explain(self, queue: str, id: str) -> Explained:
        """Return the facts that explain the state of a message."""
        facts = await self.ask(Explained, Explain(queue, id))
        steps = look_further(queue, id, facts, around=self.capabilities.shared)
        return await self.run(steps)

    async def names(self, access: Access, prefix: str = "", *, own: bool = False) -> list[str]:
        """Return the names of the queues that a visitor may see, as the store has them.

        Args:
            access: the access of the visitor.
            prefix: how they begin for the visitor.
            own: whether to include the internal queues of bide.
        """
        caller = access.caller
        full_prefix = caller.prefix(check_prefix(prefix))
        reply = await self.recent.get(
            ("names", full_prefix), SAMPLE_EVERY, lambda: self.ask(Names, Queues(full_prefix))
        )
        return [
            full
            for full in reply.names
            if (name := caller.own(full)) is not None
            and (own or is_listed(name, prefix))
            and access.may_read(full)
        ]

    async def glance(self, access: Access, prefix: str = "", after: str = "") -> Glance:
        """Return a page of queues and their recent samples.

        Args:
            access: the access of the visitor.
            prefix: how the names of the queues begin.
            after: the page begins after this name, the visitor's.
        """
        key = access.sight, prefix, after

        async def read() -> Glance:
            """Read the page and one sample of its queues, and add that to the samples before."""
            caller = access.caller
            all_names = await self.names(access, prefix)  # as the store has them, like `shown`
            after_in_store = caller.prefix(after)
            remaining = [name for name in all_names if name > after_in_store]
            shown = remaining[:QUEUES]
            names_in_store = (await self.ask(Names, Queues(""))).names
            registers = caller.registers(names_in_store)  # queues with reports of workers
            now = self.clock.now()
            sample = await self.run(
                take_sample(shown, registers, self.clock.monotonic(), now, caller.own)
            )
            history = self._histories.get(key) or _History()
            self._histories[key] = history  # again: the latest one is forgotten last
            history.samples.append(sample)
            return Glance(
                names=shown,
                total=len(all_names),
                following=caller.own(shown[-1]) if len(remaining) > QUEUES else None,
                samples=list(history.samples),
                workers=history.workers.see(sample),
            )

        return await self.recent.get(("glance", *key), SAMPLE_EVERY, read)

    async def forecast(self, queues: Sequence[str], bucket: int, buckets: int) -> Forecasted | None:
        """Return when the messages of some queues fall due, counted together.

        Returns `None` while that is still being counted, or while the visitor's namespace has too
        many slow reads under way: a later call gets it.

        Args:
            queues: the queues, by their names in the store.
            bucket: the length of a bucket in milliseconds.
            buckets: how many buckets there are.
        """

        async def read() -> Forecasted:
            forecasts = [
                await self.ask(Forecasted, ForecastCommand(name, bucket, buckets))
                for name in queues
            ]
            return sum_forecasts(forecasts or [Forecasted(self.clock.now(), 0, [0] * buckets, 0)])

        key = "forecast", bucket, buckets, tuple(queues)
        try:
            async with asyncio.timeout(FORECAST_PATIENCE):
                return await self.recent.get(key, FORECAST_EVERY, read)
        except TimeoutError:
            return None
        except Problem as problem:
            if problem.kind.name != "too-many-open":
                raise
            return None

    async def past(self, access: Access, command: PastCommand) -> Past | None:
        """Return what has happened in queues of a visitor.

        Returns `None` while it is still being read, or while the visitor's namespace has too many
        slow reads under way: a later call gets it. Also if the visitor may not see all queues of
        another server, and no queue is named.

        Args:
            access: the access of the visitor.
            command: which slots, of a queue or of several, by their names in the store.
        """
        key = "past", access.caller, command
        try:
            async with asyncio.timeout(FORECAST_PATIENCE):
                return await self.recent.get(key, PAST_EVERY, lambda: self._visit.past(command))
        except (TimeoutError, AccessDenied):
            return None
        except Problem as problem:
            if problem.kind.name != "too-many-open":
                raise
            return None

    async def search(
        self,
        queues: Sequence[tuple[str, str]],
        query: Query,
        cursor: str,
        limit: int,
        shown: Redaction,
        **more: Any,
    ) -> Listed:
        """List messages until a page is full; at most so many that the store does not notice.

        The arguments are those of `search_steps`, and what the visitor may see of bodies.
        """
        steps = search_steps(
            queues,
            query,
            cursor or None,
            limit,
            MOST_SEARCHED,
            ids_ordered=self.capabilities.ids_ordered,
            **more,
        )
        await self._visit.hold(PAGE_BYTES)
        lists_a_state = query == Query(state=query.state)  # the store need not search for these
        if lists_a_state:
            page = await self.run(steps)
        else:
            with self._visit.slowly():
                page = await self.run(steps)
        summaries = [summary_of(message, shown) for message in page.messages]
        return Listed(summaries, page.searched, page.total, page.cursor)
