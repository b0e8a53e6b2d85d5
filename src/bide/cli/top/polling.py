"""Sample a store again and again: by polling it, or from the event stream of a server."""

import time
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from bide.cli.store import Store
from bide.cli.times import now_ms
from bide.cli.top.rates import Workers
from bide.model.errors import BideError, StoreError
from bide.model.identity import is_listed
from bide.model.replies import Counts
from bide.observing.sample import Lateness, Sample, Worker, answered, look

__all__ = ["Poller", "poller_of"]

AGAIN = 1.0
"""Seconds until a server that is down is tried again."""

SILENCE = 20.0
"""Seconds beyond the interval without an event after which a server counts as down."""


class Poller(ABC):
    """Keeps the last sample and the one before."""

    waits = False
    """Whether to wait for a store that is down, even without a terminal."""

    def __init__(self, store: Store, prefix: str, interval: float) -> None:
        self.store = store
        self.prefix = prefix
        self.interval = interval
        self.workers = Workers()
        self.sample = Sample(0.0, {})
        self.before: Sample | None = None
        self.now = now_ms()
        """The store's clock at the last sample, in Unix milliseconds."""
        self.trouble: BideError | None = None

    def look(self) -> None:
        """Take a sample.

        Raises:
            BideError: the store failed.
        """
        sample = self._taken()
        self.before = self.sample if self.sample.moment else None
        self.sample = sample

    def look_again(self) -> None:
        """Wait for the interval, then take a sample; if that fails, keep the last one."""
        self._pause()
        try:
            self.look()
            self.trouble = None
        except StoreError as error:
            self.trouble = error

    @abstractmethod
    def close(self) -> None:
        """Close the connection, if there is one."""

    @abstractmethod
    def _taken(self) -> Sample: ...

    @abstractmethod
    def _pause(self) -> None: ...


class StorePoller(Poller):
    """Asks the store each time."""

    def _taken(self) -> Sample:
        self.now = now_ms()
        names, registers = self.store.names(self.prefix), self.store.registers()
        return answered(
            look(names, registers, time.monotonic(), self.now, self._is_wanted),
            self.store.lane.call,
        )

    def _is_wanted(self, queue: str) -> bool:
        return queue.startswith(self.prefix)

    def _pause(self) -> None:
        time.sleep(self.interval)

    def close(self) -> None:
        """Do nothing: the connection is that of the store."""


class _CountsOf(msgspec.Struct):
    queue: str
    counts: Counts


class _WorkerOut(msgspec.Struct):
    holder: str
    holds: dict[str, int]
    until: int | None = None
    silent: int | None = None


class _AtWork(msgspec.Struct):
    workers: list[_WorkerOut] = []
    lateness: dict[str, Lateness] = {}
    partly: bool = False


class _Tick(msgspec.Struct):
    now: int


class _Problem(msgspec.Struct):
    detail: str


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
        self._at_work = _AtWork()

    def _taken(self) -> Sample:
        try:
            return self._until_tick()
        except BideError:
            self._events.drop()
            self._began = False
            raise

    def _until_tick(self) -> Sample:
        if not self._began:  # the stream begins with all there is
            self._queues, self._at_work = {}, _AtWork()
            self._began = True
        while True:
            kind, data = self._events.next()
            match kind:
                case "counts":
                    told = msgspec.json.decode(data, type=_CountsOf)
                    if is_listed(told.queue, self.prefix):
                        self._queues[told.queue] = told.counts
                case "workers":
                    self._at_work = msgspec.json.decode(data, type=_AtWork)
                case "problem":
                    problem = msgspec.json.decode(data, type=_Problem)
                    raise StoreError(f"{self.store.shown}: {problem.detail}")
                case "tick":
                    self.now = msgspec.json.decode(data, type=_Tick).now
                    return self._sample(self.now / 1000)

    def _sample(self, moment: float) -> Sample:
        workers = {
            one.holder: Worker(
                one.holder, dict(one.holds), one.until, one.silent,
                moment - (one.silent or 0) / 1000,
            )
            for one in self._at_work.workers
        }  # fmt: skip
        at_work = self._at_work
        return Sample(moment, dict(self._queues), workers, at_work.lateness, at_work.partly)

    def _pause(self) -> None:
        """Wait only if the server is down: otherwise the events set the pace."""
        if self.trouble is not None:
            time.sleep(min(AGAIN, self.interval))

    def close(self) -> None:
        """Hang up."""
        self._events.drop()


def poller_of(store: Store, prefix: str, interval: float) -> Poller:
    """Return the poller for a store: of a server, its event stream."""
    kind: Any = EventPoller if urlsplit(store.url).scheme in ("http", "https") else StorePoller
    found: Poller = kind(store, prefix, interval)
    return found
