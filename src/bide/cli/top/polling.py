"""Sample a store again and again: by polling it, or from the event stream of a server."""

import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from bide.cli.store import Store
from bide.cli.times import now_ms
from bide.cli.top.paced_forecast import Ahead, PacedForecast
from bide.model.errors import BideError, StoreError
from bide.model.identity import is_listed
from bide.model.replies import Counts, Forecasted
from bide.observing.heartbeat import Busy
from bide.observing.sample import Lateness, RecentWorkers, Sample, Worker, take_sample

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
