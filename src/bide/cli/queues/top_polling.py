"""Sample a store again and again: by polling it, or from the event stream of a server."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from bide.cli.store import Store
from bide.cli.times import now_ms
from bide.clock import SYSTEM_CLOCK, Clock
from bide.model.commands import Forecast
from bide.model.errors import BideError, StoreError
from bide.model.identity import is_listed
from bide.model.replies import Counts, Forecasted
from bide.observing.heartbeat import Busy
from bide.observing.sample import Lateness, RecentWorkers, Sample, Worker, take_sample, together

BUCKET = 3_600_000
"""Milliseconds. Stores have counters of whole hours, so the cost does not grow with the days."""

BUCKETS = 24

QUEUES = 100
"""How many queues are asked: those with the most delayed messages."""

EVERY = 5.0
"""Seconds between two forecasts, at least."""

PAUSE = 20
"""The next forecast waits at least so many times as long as the last one took."""

_BLOCKS = "▁▂▃▄▅▆▇█"


class Ahead(NamedTuple):
    """What falls due in the next hours."""

    found: Forecasted | None
    """`None`: the store did not answer."""
    left_out: int = 0
    """How many queues with delayed messages were not asked."""
    problem: str = ""
    """Why the store did not answer."""


class PacedForecast:
    """Reads forecasts at a bounded rate, however often it is asked for them.

    Args:
        ask: executes a command.
        clock: tells when the next forecast may be read.
    """

    def __init__(self, ask: Callable[[Forecast], Forecasted], clock: Clock = SYSTEM_CLOCK) -> None:
        self._ask = ask
        self._clock = clock
        self._next = clock.monotonic()
        self._last: Ahead | None = None

    def of(self, queues: Mapping[str, Counts]) -> Ahead | None:
        """Return the last forecast, or a new one if it is time; `None`: nothing is delayed.

        Args:
            queues: the queues with their counts.
        """
        delayed = {name: one.sizes.delayed for name, one in queues.items() if one.sizes.delayed}
        if not delayed:
            return None
        began = self._clock.monotonic()
        if self._last is None or began >= self._next:
            self._last = self._read(sorted(delayed, key=lambda name: (-delayed[name], name)))
            ended = self._clock.monotonic()
            self._next = ended + max(EVERY, PAUSE * (ended - began))
        return self._last

    def _read(self, names: Sequence[str]) -> Ahead:
        try:
            found = [self._ask(Forecast(name, BUCKET, BUCKETS)) for name in names[:QUEUES]]
        except StoreError as error:  # the table is shown without it
            return Ahead(None, problem=str(error))
        return Ahead(together(found), max(0, len(names) - QUEUES))


def sparkline(counts: Sequence[int]) -> str:
    """Return counts as a line of blocks; any count above 0 is visible.

    Example:
        >>> sparkline([0, 1, 500, 1000])
        '·▁▄█'
    """
    most = max(counts, default=0)
    return "".join(
        _BLOCKS[max(1, round(count / most * len(_BLOCKS))) - 1] if count else "·"
        for count in counts
    )


AGAIN = 1.0
"""Seconds until a server that is down is tried again."""

SILENCE = 20.0
"""Seconds beyond the interval without an event after which a server counts as down."""


class View(NamedTuple):
    """What `bide top` shows."""

    sample: Sample
    before: Sample | None
    """The sample before this one, for the rates."""
    workers: list[Worker]
    """The workers of this sample and of the last minute, those that hold most first."""
    now: int
    """The store's clock, in Unix milliseconds."""
    ahead: Ahead | None = None
    """What falls due when; `None`: nothing is delayed."""


class Poller(ABC):
    """Keeps the last sample and the one before."""

    waits = False
    """Whether to wait for a store that is down, even without a terminal."""

    def __init__(self, store: Store, prefix: str, interval: float) -> None:
        self.store = store
        self.prefix = prefix
        self.interval = interval
        self.view = View(Sample(0.0, {}), None, [], now_ms())
        self.trouble: BideError | None = None
        self._workers = RecentWorkers()
        self._forecast = PacedForecast(lambda command: store.ask(Forecasted, command))

    def take_sample(self) -> None:
        """Take a sample.

        Raises:
            BideError: the store failed.
        """
        sample, now = self._sample()
        before = self.view.sample if self.view.sample.moment else None
        ahead = self._forecast.of(sample.queues)
        self.view = View(sample, before, self._workers.see(sample), now, ahead)

    def refresh(self) -> None:
        """Wait for the interval, then take a sample; if that fails, keep the last one."""
        self._pause()
        try:
            self.take_sample()
            self.trouble = None
        except StoreError as error:
            self.trouble = error

    @abstractmethod
    def _sample(self) -> tuple[Sample, int]:
        """Return a sample, and the store's clock in Unix milliseconds."""

    @abstractmethod
    def _pause(self) -> None: ...


class StorePoller(Poller):
    """Asks the store each time."""

    def _sample(self) -> tuple[Sample, int]:
        now = now_ms()
        names, registers = self.store.names(self.prefix), self.store.registers()
        steps = take_sample(
            names, registers, time.monotonic(), now, lambda queue: queue.startswith(self.prefix)
        )
        return self.store.run(steps), now

    def _pause(self) -> None:
        time.sleep(self.interval)


class EventPoller(Poller):
    """Reads what changes from the event stream of a server."""

    waits = True

    def __init__(self, store: Store, prefix: str, interval: float) -> None:
        super().__init__(store, prefix, interval)
        from bide.engines.http import address_of
        from bide.engines.http.stream import EventStream

        address, timeout = address_of(urlsplit(store.url))
        query = urlencode({"counts": f"{interval:g}", "workers": "true", "prefix": prefix})
        self._events = EventStream(address, query, max(timeout, interval + SILENCE))
        self._began = False
        self._queues: dict[str, Counts] = {}
        self._at_work: dict[str, Any] = {}
        store.callback(self._events.drop)

    def _sample(self) -> tuple[Sample, int]:
        try:
            return self._until_tick()
        except BideError:
            self._events.drop()
            self._began = False
            raise

    def _until_tick(self) -> tuple[Sample, int]:
        if not self._began:  # a new stream begins with everything
            self._queues, self._at_work = {}, {}
            self._began = True
        while True:
            kind, data = self._events.next()
            told = msgspec.json.decode(data)
            if kind == "counts" and is_listed(told["queue"], self.prefix):
                self._queues[told["queue"]] = msgspec.convert(told["counts"], Counts)
            elif kind == "workers":
                self._at_work = told
            elif kind == "problem":
                raise StoreError(f"{self.store.shown}: {told['detail']}")
            elif kind == "tick":
                return self._told(told["now"] / 1000), told["now"]

    def _told(self, moment: float) -> Sample:
        workers = {
            one["holder"]: Worker(
                one["holder"], one["holds"], one.get("until"), one.get("silent"),
                moment - one.get("silent", 0) / 1000,
                msgspec.convert(one.get("busy", {}), dict[str, Busy]),
            )
            for one in self._at_work.get("workers", [])
        }  # fmt: skip
        lateness = msgspec.convert(self._at_work.get("lateness", {}), dict[str, Lateness])
        partly = self._at_work.get("partly", False)
        causes = self._at_work.get("causes", {})
        return Sample(moment, dict(self._queues), workers, lateness, partly, causes)

    def _pause(self) -> None:
        """Wait only if the server is down: otherwise the events set the pace."""
        if self.trouble is not None:
            time.sleep(min(AGAIN, self.interval))


def poller_of(store: Store, prefix: str, interval: float) -> Poller:
    """Return the poller for a store: of a server, its event stream."""
    return (EventPoller if store.remote else StorePoller)(store, prefix, interval)
