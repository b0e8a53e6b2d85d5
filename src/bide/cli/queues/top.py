"""`bide top`: a live table of queues and workers."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any
from urllib.parse import urlencode

import click
import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import flush_output, raise_on_termination
from bide.cli.output import Output, warn
from bide.cli.queues.top_view import BUCKET, BUCKETS, Ahead, TopView, as_facts, print_rows
from bide.cli.store import CommandStore
from bide.cli.times import now_ms
from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.registry import split_url
from bide.model.commands import ForecastCommand
from bide.model.errors import StoreError
from bide.model.internal_queues import InternalQueue, is_listed
from bide.model.replies import Counts, Forecasted
from bide.observing.sample import RecentWorkers, Sample, Worker, sum_forecasts, take_sample

SHORTEST_INTERVAL = 0.1
"""Seconds between two refreshes, at least."""

MOST_FORECASTS = 100
"""How many queues are asked: those with the most delayed messages."""

FORECAST_EVERY = 5.0
"""Seconds between two forecasts, at least."""

PAUSE_FACTOR = 20
"""The next forecast waits at least so many times as long as the last one took."""

RETRY_SECONDS = 1.0
"""Seconds until a store that is away is tried again, at most."""

SILENCE_SECONDS = 20.0
"""Seconds beyond the interval without an event after which a server counts as down."""


def read_store(store: CommandStore, prefix: str, interval: float) -> Iterator[tuple[Sample, int]]:
    """Read a store again after each interval; yield its clock, too, in Unix milliseconds."""
    while True:
        now, names = now_ms(), store.names(prefix)
        # Workers report in these, also about queues that are not shown.
        registers = [name for name in store.names(own=True) if InternalQueue.WORKERS.matches(name)]
        steps = take_sample(
            names, registers, time.monotonic(), now, lambda queue: queue.startswith(prefix)
        )
        yield store.run(steps), now
        time.sleep(interval)


def read_events(store: CommandStore, prefix: str, interval: float) -> Iterator[tuple[Sample, int]]:
    """Read what changes from the event stream of a server, which begins with everything."""
    from bide.engines.http import address_of
    from bide.engines.http.events import EventStream

    address, timeout = address_of(split_url(store.url))
    query = urlencode({"counts": f"{interval:g}", "workers": "true", "prefix": prefix})
    events = EventStream(address, query, max(timeout, interval + SILENCE_SECONDS))
    queues: dict[str, Counts] = {}
    report: dict[str, Any] = {"workers": []}
    try:
        while True:
            kind, data = events.next()
            event = msgspec.json.decode(data)
            if kind == "counts" and is_listed(event["queue"], prefix):
                queues[event["queue"]] = msgspec.convert(event["counts"], Counts)
            elif kind == "gone":
                queues.pop(event.get("queue"), None)
            elif kind == "workers":
                report = event
            elif kind == "problem":
                raise StoreError(f"{store.shown}: {event['detail']}")
            elif kind == "tick":
                yield _sample_of(queues, report, event["now"] / 1000), event["now"]
    finally:
        events.drop()


def _sample_of(queues: dict[str, Counts], report: dict[str, Any], moment: float) -> Sample:
    """Return a sample of what the events have said so far.

    Args:
        queues: the last counts of each queue.
        report: the last event about workers.
        moment: the server's clock, in Unix seconds.
    """
    workers = {}
    for fields in report["workers"]:
        worker = msgspec.convert(fields, Worker)
        worker.seen = moment - (worker.silent or 0) / 1000
        workers[worker.holder] = worker
    facts = {**report, "moment": moment, "queues": {}, "workers": {}}
    return msgspec.structs.replace(
        msgspec.convert(facts, Sample), queues=dict(queues), workers=workers
    )


class Forecaster:
    """Reads what falls due when, now and then."""

    def __init__(self, store: CommandStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self.trouble: StoreError | None = None
        """Why the last forecast could not be read."""
        self._store = store
        self._clock = clock
        self._ahead: Ahead | None = None
        """The last forecast."""
        self._next_at = 0.0
        """When the next one may be read, in seconds of the monotonic clock."""

    def forecast(self, queues: Mapping[str, Counts]) -> Ahead | None:
        """Return the last forecast, or a new one if it is time; `None`: there is none.

        A forecast that fails does not end a sample: a server refuses slow reads that are too many.

        Args:
            queues: the queues with their counts.
        """
        delayed = {
            name: counts.sizes.delayed for name, counts in queues.items() if counts.sizes.delayed
        }
        if not delayed:
            return None
        began = self._clock.monotonic()
        if self._ahead is None or began >= self._next_at:
            names = sorted(delayed, key=lambda name: (-delayed[name], name))
            commands = [ForecastCommand(name, BUCKET, BUCKETS) for name in names[:MOST_FORECASTS]]
            try:
                forecasts = [self._store.ask(Forecasted, command) for command in commands]
                self._ahead = Ahead(sum_forecasts(forecasts), max(0, len(names) - MOST_FORECASTS))
                self.trouble = None
            except StoreError as error:
                self.trouble = error
            ended = self._clock.monotonic()
            self._next_at = ended + max(FORECAST_EVERY, PAUSE_FACTOR * (ended - began))
        return self._ahead


def read_views(
    store: CommandStore, prefix: str, interval: float, forecaster: Forecaster
) -> Iterator[TopView | StoreError]:
    """Yield what there is after each interval, or why the store is away; then begin again."""
    read_samples = read_events if store.remote else read_store
    sample_before: Sample | None = None
    recent_workers = RecentWorkers()
    while True:
        try:
            for sample, now in read_samples(store, prefix, interval):
                ahead = forecaster.forecast(sample.queues)
                yield TopView(sample, sample_before, recent_workers.see(sample), now, ahead)
                sample_before = sample
        except StoreError as error:
            yield error
            time.sleep(min(RETRY_SECONDS, interval))


@on_store(option.prefix, option.time("--interval", "How often to refresh.", "1s"))
@option.flag("--once", help="Print once and exit.")
def top(store: CommandStore, out: Output, prefix: str, interval: float, once: bool) -> None:
    """Watch queues and workers, live.

    All queues of the store, or those whose names begin with PREFIX.

    Ctrl-C and SIGTERM end it. Without a terminal, or on one that cannot move the cursor, it prints
    once; with --json it prints one object per refresh.

    In a pipe, each line is: "queue", name, delayed, ready, leased, dead, late by, the counters of
    `bide counts`, and the median and the 99th percentile of the lateness of deliveries in the last
    minute, all in milliseconds; or "worker", name, the number of messages that it holds, their
    queues; or, last, if messages are delayed, "forecast", the start of this hour, the number of
    messages that are due, of those that fall due in each of 24 hours from that start, and later.

    The forecast is that of all queues together: of the 100 with the most delayed messages, if there
    are more. It is read every five seconds at most. On a terminal its hours are in local time.

    With --url http://... it reads the event stream of the server, and waits while the server is
    down. The workers are those of `bide worker`, clients that claim over HTTP, and every other
    holder of messages.

    \b
    Example:
      bide top
      bide top shop- --interval 5s
      BIDE_TOKEN=... bide top --url http://127.0.0.1:8642
      bide top --once --json | jq '.queues[] | select(.late > 60000)'
    """
    if interval < SHORTEST_INTERVAL:
        raise click.BadParameter("must be 100ms or longer", param_hint="'--interval'")
    forecaster = Forecaster(store)
    views = read_views(store, prefix, interval, forecaster)
    with suppress(KeyboardInterrupt, SystemExit), raise_on_termination():  # how users end it
        view = next(views)
        if isinstance(view, StoreError):
            raise view
        if forecaster.trouble is not None:
            warn(f"there is no forecast: {forecaster.trouble}")
        if out.as_json:
            _print_objects(out, chain([view], () if once else views))
        elif not out.terminal:
            print_rows(out, view)
        else:
            from bide.cli.queues.top_screen import picture, watch  # here: it takes long to import

            if once or out.console.is_dumb_terminal:  # it cannot draw over what is there
                image = picture(view, store.shown, out.console.width, prefix=prefix)
                out.console.print(image, crop=False)
            else:
                watch(out, view, views, store.shown, prefix)


def _print_objects(out: Output, views: Iterable[TopView | StoreError]) -> None:
    """Print each view as JSON; warn once when the store goes away."""
    store_is_away = False
    for view in views:
        if isinstance(view, TopView):
            out.json(as_facts(view))
            flush_output()
        elif not store_is_away:
            warn(f"{view}; waiting for it")
        store_is_away = isinstance(view, StoreError)
