"""Heartbeats: worker processes report in the store that they are alive.

A worker that holds no message leaves no trace in its queues. So every few seconds each process puts
a report, a message in a queue from which nothing claims. The message becomes due when the process
has been silent for a while.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Annotated, NamedTuple

import msgspec

from bide.clock import Clock, sleep
from bide.lane.lane import Lane
from bide.lane.steps import Steps, arun_steps
from bide.logs import logger
from bide.model.commands import Cancel, Purge, Put, Scan
from bide.model.errors import BideError, InvalidArgument
from bide.model.identity import check_name, check_queue
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_BYTES
from bide.model.message import Item, Message
from bide.model.replies import Page
from bide.observing.process_origin import LONGEST, UNKNOWN
from bide.observing.tally import Histogram, Tally
from bide.undoing.steps import forget_changes

REGISTER = InternalQueue.WORKERS.value
"""The register: the queue of reports, one in each namespace that has workers."""

BEAT_SECONDS = 5.0
"""Seconds between two reports of a process."""

SILENT = 20_000
"""Milliseconds without a report after which a process counts as dead."""

WINDOW_BEATS = 12
"""The lateness of deliveries is in so many reports: for a minute."""

FAREWELL_SECONDS = 2.0
"""The maximum time to delete a report at the end, in seconds."""

SWEEP_EVERY = 60
"""The number of beats after which the reports of dead processes are deleted."""

REMEMBER_SECONDS = 60.0
"""Seconds for which a process is listed after it was last seen."""

READ_MOST = 1_000
"""How many reports of a register are read."""

LARGEST = 64 * 1024
"""Bytes of a report in the register of a namespace; a larger one is skipped."""

READ_BYTES = 256 * 1024
"""How many bytes of reports are read there. Everyone who may claim in the namespace may write them,
and nothing else goes on while they are read."""

LONGEST_REASON = 300
"""The number of characters that are logged of an error about a wrong report."""

_log = logger("bide.worker")


Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1 << 53)]


class Busy(msgspec.Struct, omit_defaults=True):
    """How busy a process is on one queue."""

    places: Number
    """How many messages it handles at a time."""
    running: Number = 0
    """How many it handles now."""
    longest: str | None = None
    """The id of the message that it has handled for the longest time."""
    since: Number | None = None
    """Since when, in Unix milliseconds of its own clock."""
    hours: str | None = None
    """The hours of the window in which it handles messages; `None`: it has none."""
    timezone: str | None = None
    """The time zone of these hours."""
    opens: Number | None = None
    """When its window opens, if that is closed; in Unix milliseconds of the store's clock."""


class Report(msgspec.Struct, omit_defaults=True):
    """What a process reports."""

    workers: dict[str, list[str]]
    """The queues that it works on, by the name under which it claims."""
    lateness: dict[str, Histogram] = {}
    """The lateness of recent deliveries, by queue."""
    busy: dict[str, Busy] = {}
    """What it handles, by queue."""
    supervised: bool = False
    """Whether a supervisor replaces the process when it is asked to."""
    causes: dict[str, dict[str, Seconds]] = {}
    """Why recent deliveries began late, in seconds by cause, by queue."""
    began: Number = 0
    """When the process began to work, in Unix milliseconds of its own clock."""
    gaps: dict[str, list[tuple[Seconds, Seconds]]] = {}
    """When no worker served a queue before that, as far as the process knows."""
    origin: Annotated[str, msgspec.Meta(max_length=LONGEST)] = UNKNOWN
    """Which process of which machine claims by these names: see `bide.observing.process_origin`.
    Unknown if other processes do, such as clients of a server."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode


def report_id(holder: str, origin: str) -> str:
    """Return the id of the report of a process.

    Processes of several containers may claim by one name, since they share the name of their host.
    Each has a report of its own, so that all are known.
    """
    return f"{holder} {zlib.crc32(origin.encode()):08x}" if origin else holder


def put_report(process: str, report: Report) -> Put:
    """Return the command that puts a report."""
    return Put(REGISTER, [Item(process, _encode(report), delay=SILENT)], "replace")


def delete_report(process: str) -> Cancel:
    """Return the command that deletes the report of a process."""
    return Cancel(REGISTER, [process])


def decode_report(data: bytes) -> Report:
    """Return a report, with the names of its queues as they are in it.

    Raises:
        InvalidArgument: it is not a report.
    """
    try:
        report = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(str(error)) from None
    texts = chain.from_iterable(
        (busy.longest, busy.hours, busy.timezone) for busy in report.busy.values()
    )
    names = [text for text in texts if text is not None]
    for name in chain(report.workers, names, *report.causes.values()):
        check_name(name)
    for queue in queues_of(report):
        check_queue(queue)
    return report


def queues_of(report: Report) -> set[str]:
    """Return the names of all queues that a report is about."""
    figures = report.lateness, report.busy, report.causes, report.gaps
    return set(chain(*report.workers.values(), *figures))


def read(message: Message) -> Report | None:
    """Return a report, with the names that its queues have in the whole store.

    Every client that may claim may write to the register, so this checks everything. It logs a
    wrong report once.

    Returns:
        `None` if the report is wrong, or of a newer version.
    """
    try:
        if message.queue != REGISTER and len(message.data) > LARGEST:
            raise InvalidArgument(f"it takes more than {LARGEST:,} bytes")
        report = decode_report(message.data)
    except InvalidArgument as error:
        _log_wrong(message.queue, message.id, str(error)[:LONGEST_REASON])
        return None
    namespace_prefix = message.queue.removesuffix(REGISTER)  # "shop/", or ""
    figures = {
        field: {
            namespace_prefix + queue: figure for queue, figure in getattr(report, field).items()
        }
        for field in ("lateness", "busy", "causes", "gaps")
    }
    workers = {
        holder: [namespace_prefix + queue for queue in queues]
        for holder, queues in report.workers.items()
    }
    return msgspec.structs.replace(report, workers=workers, **figures)


class Recent(NamedTuple):
    """A report of a process that was alive a minute ago."""

    register: str
    """The queue of the report."""
    report: Report
    silent: int | None
    """For how many milliseconds it has been overdue; `None`: it is not."""


def recent_reports(registers: Iterable[str], now: int) -> Steps[tuple[list[Recent], bool]]:
    """Read the reports of registers, without processes that have been silent for a minute.

    Args:
        registers: the queues of the reports.
        now: the store's clock, in Unix milliseconds.

    Returns:
        The reports, and whether there are more than were read.
    """
    reports: list[Recent] = []
    partly = False
    for register in registers:
        # Only the namespaces of clients are limited further: see `READ_BYTES`.
        max_bytes = MAX_BYTES if register == REGISTER else READ_BYTES
        page: Page = yield Scan(register, "next", limit=READ_MOST, max_bytes=max_bytes)
        partly = partly or page.cursor is not None
        for message in page.messages:
            silent = now - message.due if message.state == "ready" else None
            report = read(message)
            if report is not None and (silent is None or silent <= REMEMBER_SECONDS * 1000):
                reports.append(Recent(register, report, silent))
    return reports, partly


@lru_cache(maxsize=1_000)
def _log_wrong(queue: str, id: str, reason: str) -> None:
    """Log a wrong report; the cache makes it once for each."""
    _log.info("%s: the report %r of a worker is skipped: %s", queue, id, reason)


class LastMinute:
    """The lateness of the last minute, and its causes.

    Example:
        >>> recent, tally = LastMinute(), Tally()
        >>> tally.lateness.observe(0.004)
        >>> [recent.of({"orders": tally})["orders"].lateness.count for _ in range(13)][-2:]
        [1, 0]
    """

    def __init__(self) -> None:
        self._earlier: deque[dict[str, Tally]] = deque([{}] * WINDOW_BEATS, WINDOW_BEATS)
        """What was counted at the last calls of `of`, the oldest first, by queue."""

    def of(self, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
        """Return the part of the last minute; call it every `BEAT_SECONDS` seconds.

        Args:
            tallies: what was counted so far, by queue.
        """
        minute_ago = self._earlier[0]
        # Since nothing: a copy, which later deliveries do not change.
        copies = {queue: tally.late_since(Tally()) for queue, tally in tallies.items()}
        self._earlier.append(copies)
        return {
            queue: tally.late_since(minute_ago.get(queue, Tally()))
            for queue, tally in tallies.items()
        }


@dataclass(eq=False)
class Heartbeat:
    """Reports every few seconds which workers run, on which queues, and their recent lateness.

    Nothing depends on it: if the store is down, or does not let this worker put, work goes on.
    """

    lane: Lane
    clock: Clock
    process: str
    """The id of the report."""
    report: Callable[[], Report]
    """Returns what to report, without the figures of the last minute."""
    tallies: Callable[[], Mapping[str, Tally]]
    """Returns what was done so far, by queue."""
    after_first: Callable[[], Awaitable[None]] | None = None
    """Awaited once the store has the first report, before reports of dead processes are deleted."""
    _recent: LastMinute = field(default_factory=LastMinute)
    _is_in_register: bool = False
    """Whether the store has a report of this process."""
    _has_complained: bool = False
    """Whether the last beat failed, which is logged once."""

    async def keep(self) -> None:
        """Report until this is cancelled; then delete the report."""
        beats = 0
        try:
            while True:
                try:
                    await self._send_report()
                    if self.after_first is not None:
                        after_first, self.after_first = self.after_first, None
                        await after_first()
                    if beats % SWEEP_EVERY == 0:
                        await self._sweep()
                    self._has_complained = False
                except BideError as error:
                    if not self._has_complained:
                        _log.info("this process cannot report that it is alive: %s", error)
                    self._has_complained = True
                beats += 1
                await sleep(self.clock, BEAT_SECONDS)
        finally:
            await self._delete_report()

    async def _sweep(self) -> None:
        """Delete what nobody needs any more: reports of dead processes, and old undo records."""
        if self._is_in_register:
            await self.lane.acall(Purge(REGISTER, "ready"))  # a report of a dead process is due
        if not self.lane.capabilities.has_server:  # else the store does so itself
            await arun_steps(forget_changes(), self.lane.acall)

    async def _delete_report(self) -> None:
        """Delete the report at the end; without an answer, it stays until it is overdue."""
        if self._is_in_register:
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self.lane.acall(delete_report(self.process))
            except (BideError, TimeoutError) as error:
                _log.debug("the report of this process stays until it is overdue: %s", error)

    async def _send_report(self) -> None:
        """Put the report, or delete it if there is nothing to report."""
        report = self.report()
        report.workers = {holder: sorted(queues) for holder, queues in report.workers.items()}
        for queue, recent in self._recent.of(self.tallies()).items():
            if recent.lateness.count:
                report.lateness[queue] = recent.lateness
            if recent.causes:
                report.causes[queue] = {
                    cause: round(max(0.0, histogram.sum), 3)
                    for cause, histogram in recent.causes.items()
                }
        if report.workers or report.lateness:
            await self.lane.acall(put_report(self.process, report))
            self._is_in_register = True
        elif self._is_in_register:
            await self.lane.acall(delete_report(self.process))
            self._is_in_register = False
