"""Sources and schedules of an app."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from bide.consuming.handler import checked_retry, make_handler, name_of, seconds_of
from bide.consuming.handling import Handler
from bide.consuming.queue_handlers import QueueHandlers, lease_of
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue
from bide.model.message import MAX_ATTEMPTS
from bide.model.recurrence import period, recurrence
from bide.model.repeat import MISSED, Missed, repeat
from bide.model.times import Duration, milliseconds
from bide.worker.app.registrations import Registrations
from bide.worker.periodic.schedule import Schedule, ScheduleTicks
from bide.worker.periodic.source import Source, SourceWindows, inspect_source

F = TypeVar("F", bound=Callable[..., Any])

SIGNATURES = "a schedule takes (tick: bide.Tick), the delivery, both, or nothing"
PATIENT = Backoff(first="5s", factor=2, ceiling="5m", attempts=MAX_ATTEMPTS)
"""The delays between attempts to ask a source that fails."""


class Periodic(Registrations):
    """The part of an `App` with sources and schedules."""

    def source(
        self,
        queue: str,
        *,
        every: Duration,
        window: Duration,
        back: Duration | None = None,
        keep: Duration | None = None,
        name: str | None = None,
        lease: Duration = "1m",
        timeout: Duration | None = None,
        retry: Backoff | None = None,
    ) -> Callable[[F], F]:
        """Register a function that returns, from your database, the messages that should exist.

        It takes two times, `after` and `before`, aware and in UTC, and returns or yields a
        `bide.NewMessage` with an id for everything that is due between them. Messages that exist
        already are not changed. It may be a generator, or return any iterable. Plain functions run
        in a thread, async ones on the event loop.

        One worker asks for each window. A window reaches from the time of the last request to
        `window` from now, so nothing is missed, even if no worker ran meanwhile. Windows do not
        overlap in time: if one takes long, the next reaches further. After an error the same
        window is asked for again, with growing delays.

        Args:
            queue: the queue that it fills.
            every: how often it is asked.
            window: how far ahead it is asked. At least `every`; more is better, so that a message
                exists before it is due.
            back: how far back the first window of a store reaches; by default as far as `window`.
                So a lost store also gets what was due meanwhile.
            keep: how long the queue remembers acked messages at least, so that they are not put
                again; by default `every` and two times `window`.
            name: the name of the source; by default that of the function.
            lease: how long after the death of a process another one asks.
            timeout: how long one request may take; by default there is no limit.
            retry: the delays after errors. The number of attempts is not limited.

        Raises:
            InvalidArgument: the function takes other parameters, a duration is not valid, or the
                queue has a source of this name.

        Example:
            >>> import bide
            >>> app = bide.App("memory://")
            >>> @app.source("orders", every="1m", window="10m")
            ... def unpaid(after, before):
            ...     for id, due in [(42, after)]:
            ...         yield bide.NewMessage({"id": id}, at=due, id=f"order-{id}")
        """
        every_ms = period(every)
        window_ms = milliseconds(window, "window")
        if window_ms < every_ms:
            raise InvalidArgument(
                f"window={window!r} is shorter than every={every!r}: messages due between two "
                "requests would be put too late; make it longer, or ask more often"
            )
        back_ms = window_ms if back is None else milliseconds(back, "back")
        keep_ms = every_ms + 2 * window_ms if keep is None else milliseconds(keep, "keep")
        # After the last attempt, or after an error that `retry` does not name, the source would
        # never be asked again: so neither counts here.
        pauses = replace(checked_retry(retry) or PATIENT, attempts=MAX_ATTEMPTS, on=(Exception,))

        def register(function: F) -> F:
            source_name, is_async = inspect_source(function, queue, name)
            source = Source(
                queue=queue,
                name=source_name,
                function=function,
                is_async=is_async,
                every=every_ms,
                window=window_ms,
                back=back_ms,
                keep=keep_ms,
            )
            self._check_free(source.home, "give one source another name=")
            handler = Handler(
                name_of(function), source.run, is_async, timeout=seconds_of(timeout), retry=pauses
            )
            self._queue_handlers[source.home] = QueueHandlers(
                source.home,
                lease_of(lease),
                1,  # concurrency: a source has one window at a time
                {None: handler},
                partial(SourceWindows, source),
                fills=queue,
            )
            self.sources[source.home] = source
            return function

        return register

    def schedule(
        self,
        queue: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        grace: Duration = "1m",
        lease: Duration = "1m",
        timeout: Duration | None = None,
        retry: Backoff | None = None,
    ) -> Callable[[F], F]:
        """Register a function that is called by a cron expression or at a fixed period.

        It takes the `bide.Tick`, the delivery, both, or nothing; plain or async. One worker runs
        each tick, and ticks do not overlap: the schedule is one message that repeats, with the id
        "schedule" in a queue of its own. If the function raises, the tick is retried as `retry`
        says, or becomes a dead letter, and the schedule goes on.

        Args:
            queue: the queue of its message, which names the schedule; for nothing else.
            cron: five fields, as "0 9 * * MON-FRI": minute, hour, day of month, month, weekday.
            every: a period instead, counted from 1970 in UTC: "15m" runs at the full quarters.
            timezone: the time zone of `cron`, such as "Asia/Shanghai".
            missed: what to do with ticks that no worker ran in time: "once" runs one for all of
                them, "all" runs each of them, "skip" runs none.
            grace: how late a tick may start and still be on time; at most the period.
            lease: how long after the death of a process another one gets its tick.
            timeout: how long one tick may take; by default there is no limit.
            retry: the delays and the number of attempts; `Backoff()` by default.

        Raises:
            InvalidArgument: neither or both of `cron` and `every` are given, an expression, a
                period or a time zone is not valid, or the queue is taken.

        Example:
            >>> import bide
            >>> app = bide.App("memory://")
            >>> @app.schedule("reports", cron="0 9 * * MON-FRI", timezone="Asia/Shanghai")
            ... def report(tick: bide.Tick) -> None:
            ...     print("report of", tick.due)
        """
        times = recurrence(cron, every, timezone)
        if missed not in MISSED:
            raise InvalidArgument(f'missed={missed!r} must be "once", "all" or "skip"')
        # A rule of a period has no time zone.
        zone = None if cron is None else timezone
        rule = repeat(cron=cron, every=every, timezone=zone, missed=missed, grace=grace)

        def register(function: F) -> F:
            handler = make_handler(
                function,
                timeout,
                retry,
                signatures=SIGNATURES,
                optional=True,
                given=attrgetter("extra_argument"),
            )
            self._check_free(check_queue(queue), "a schedule needs its own queue")
            schedule = Schedule(queue, handler.name, times, rule, handler.retry.attempts)
            self._queue_handlers[queue] = QueueHandlers(
                queue,
                lease_of(lease),
                1,  # a process runs one tick at a time
                {None: handler},
                partial(ScheduleTicks, schedule),
            )
            self.schedules[queue] = schedule
            return function

        return register
