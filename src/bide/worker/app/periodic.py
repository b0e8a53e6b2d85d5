"""What an app does by itself, again and again: sources and schedules."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from bide.consuming.handler import Handler, checked_retry, inspect_handler, name_of, seconds_of
from bide.consuming.queue_handlers import QueueHandlers, lease_of
from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue
from bide.model.message import MAX_ATTEMPTS
from bide.model.moments import Duration, milliseconds
from bide.worker.periodic.tick import Missed

if TYPE_CHECKING:
    from bide.worker.periodic.schedule import Schedule
    from bide.worker.periodic.source import Source

__all__ = ["Periodic"]

F = TypeVar("F", bound=Callable[..., Any])

GRACE = "1m"
PATIENT = Backoff(first="5s", factor=2, ceiling="5m", attempts=MAX_ATTEMPTS)
"""Between attempts to ask a source that fails."""


class Periodic:
    """The part of an `App` that works by the clock."""

    def __init__(self) -> None:
        self._queue_handlers: dict[str, QueueHandlers] = {}
        self._sources: dict[str, Source] = {}
        self._schedules: dict[str, Schedule] = {}

    @property
    def sources(self) -> "Mapping[str, Source]":
        """The sources, by the queue in which their windows wait."""
        return MappingProxyType(self._sources)

    @property
    def schedules(self) -> "Mapping[str, Schedule]":
        """The schedules, by their queue."""
        return MappingProxyType(self._schedules)

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
        """Let a function say, from your own database, which messages should be in a queue.

        It takes two moments, `after` and `before`, aware and in UTC, and returns or yields a
        `bide.NewMessage` for each thing that falls due in between, each with an id. What is there
        already stays as it is. It may be a generator, or return any iterable; plain functions run
        in a thread from the first to the last message, async ones on the event loop.

        Among all workers each window is asked for once. It reaches from the moment of the last
        asking to `window` from now, so that nothing falls between two of them: what was missed
        while no worker was there is asked for when there is one again. A window never begins
        before the one before has ended; if that took too long, the next reaches further. An error
        has the same window asked for again, after growing pauses.

        Args:
            queue: what it fills.
            every: how often it is asked.
            window: how far ahead. At least as long as `every`, and better longer, so that a message
                is there before it is due.
            back: how far back the very first window of a store reaches; as far as `window` by
                default. So a store that was lost is filled with what fell due meanwhile as well.
            keep: for how long the queue is to remember what was acked at least, so that it is not
                put again; `every` and two times `window` by default.
            name: what it is known by; that of the function by default.
            lease: how long after the death of a process another one asks.
            timeout: how long one asking may take; none by default.
            retry: the pauses after errors; a source is never given up, whatever it says besides.

        Raises:
            InvalidArgument: the function takes something else, a time cannot be, or the queue has
                a source of this name already.

        Example:
            >>> import bide
            >>> app = bide.App("memory://")
            >>> @app.source("orders", every="1m", window="10m")
            ... def unpaid(after, before):
            ...     for id, due in [(42, after)]:
            ...         yield bide.NewMessage({"id": id}, at=due, id=f"order-{id}")
        """
        # Imported here: most of what imports bide has none.
        from bide.worker.periodic.recurrence import period
        from bide.worker.periodic.source import Source, inspect_source
        from bide.worker.periodic.source_windows import SourceWindows

        ms = period(every)
        ahead = milliseconds(window, "window")
        if ahead < 1:
            raise InvalidArgument("window must be longer than 0")
        if ahead < ms:
            raise InvalidArgument(
                f"window={window!r} is shorter than every={every!r}: what falls due between two "
                "askings would be put too late; make it longer, or ask more often"
            )
        behind = ahead if back is None else milliseconds(back, "back")
        kept = ms + 2 * ahead if keep is None else milliseconds(keep, "keep")
        pauses = replace(checked_retry(retry) or PATIENT, attempts=MAX_ATTEMPTS, on=(Exception,))

        def register(function: F) -> F:
            chosen, is_async = inspect_source(function, queue, name)
            source = Source(queue, chosen, function, is_async, ms, ahead, behind, kept, pauses)
            if source.home in self._queue_handlers:
                raise InvalidArgument(
                    f"queue {queue!r} has a source {chosen!r} already; give one another name="
                )
            self._work_on(
                QueueHandlers(source.home, lease_of(lease), 1, fills=queue),
                Handler(
                    source.home, name_of(function), source.run, is_async, None, "d",
                    seconds_of(timeout), pauses, None,
                ),
            )  # fmt: skip
            self._queue_handlers[source.home].chain = partial(SourceWindows, source)
            self._sources[source.home] = source
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
        grace: Duration = GRACE,
        lease: Duration = "1m",
        timeout: Duration | None = None,
        retry: Backoff | None = None,
    ) -> Callable[[F], F]:
        """Call a function again and again: by a cron expression, or every so often.

        It takes the `bide.Tick`, the delivery, or both; plain or async. Among all workers each
        tick is run once: it is a message in a queue of its own, whose id is its moment. A tick puts
        the next one before it runs, so the schedule goes on whatever comes of it. An exception has
        the tick tried again as `retry` says, or makes it a dead letter.

        Args:
            queue: its name, by which the schedule is known; nothing else may be in it.
            cron: five fields, as "0 9 * * MON-FRI": minute, hour, day of month, month, weekday.
            every: a period instead, counted from 1970 in UTC: "15m" is at the full quarters.
            timezone: whose clocks `cron` means, such as "Asia/Shanghai".
            missed: what to do about ticks at whose moment no worker was there: "once" runs one for
                all of them, "all" each of them, "skip" none.
            grace: how late a tick may begin and still be on time; at most the period.
            lease: how long after the death of a process another one gets its tick.
            timeout: how long one tick may take; none by default.
            retry: what comes after a failure; `Backoff()` by default.

        Raises:
            InvalidArgument: neither or both of `cron` and `every` are given, an expression, a
                period or a time zone cannot be, or the queue is taken.

        Example:
            >>> import bide
            >>> app = bide.App("memory://")
            >>> @app.schedule("reports", cron="0 9 * * MON-FRI", timezone="Asia/Shanghai")
            ... def report(tick: bide.Tick) -> None:
            ...     print("report of", tick.due)
        """
        from bide.worker.periodic.recurrence import Every, recurrence
        from bide.worker.periodic.schedule import Schedule, check_missed
        from bide.worker.periodic.schedule_ticks import ScheduleTicks

        rule = recurrence(cron, every, timezone)
        late = milliseconds(grace, "grace")
        if isinstance(rule, Every):
            late = min(late, rule.period)
        policy = check_missed(missed)
        pauses = checked_retry(retry) or Backoff()

        def register(function: F) -> F:
            is_async, _, order = inspect_handler(function, None)
            if check_queue(queue) in self._queue_handlers:
                known = next(iter(self._queue_handlers[queue].handlers.values())).name
                raise InvalidArgument(
                    f"queue {queue!r} is handled by {known} already; a schedule needs a queue of "
                    "its own"
                )
            schedule = Schedule(
                queue, name_of(function), function, order, rule, policy, late, pauses.attempts
            )
            self._work_on(
                QueueHandlers(queue, lease_of(lease), 1),
                Handler(
                    queue, schedule.name, schedule.run, is_async, None, "d", seconds_of(timeout),
                    pauses, None,
                ),
            )  # fmt: skip
            self._queue_handlers[queue].chain = partial(ScheduleTicks, schedule)
            self._schedules[queue] = schedule
            return function

        return register

    def _work_on(self, queue_handlers: QueueHandlers, handler: Handler) -> None:
        queue_handlers.handlers[None] = handler
        self._queue_handlers[queue_handlers.queue] = queue_handlers
