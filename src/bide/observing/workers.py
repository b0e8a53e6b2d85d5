"""Worker processes by their reports, times without one, and requests to replace one.

A request is a message in a queue from which nothing claims: its id is the holder. The supervisor of
that process looks there every few seconds, and deletes what it takes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from bide.lane.lane import Lane
from bide.lane.steps import Steps
from bide.logs import logger
from bide.model.commands import Cancel, Find, Put, Scan
from bide.model.errors import StoreError
from bide.model.identity import check_name
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item, Message
from bide.model.replies import Found, Outcomes, Page, expect
from bide.observing.heartbeat import (
    READ_MOST,
    REGISTER,
    SILENT,
    Busy,
    Report,
    read,
    recent_reports,
)

Span = tuple[float, float]
"""Start and end, in Unix milliseconds."""

STOPS = InternalQueue.STOPS.value
"""The queue of requests to replace a process of the whole store."""

VALID_MS = 60_000
"""Milliseconds after which a request is void: the name may belong to another process by then."""

_UNKNOWN_USER = "an unknown user"


class WorkerProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker process, as its last report says."""

    holder: str
    """The name under which it claims: its host and process."""
    queues: list[str]
    """The queues that it serves."""
    busy: dict[str, Busy] = {}
    """How many messages of each queue it handles, and the one that it has handled for longest."""
    silent: int | None = None
    """Milliseconds for which its report has been overdue."""
    stops: str | None = None
    """The queue in which a request to replace it is put; `None`: it has no supervisor, such as a
    program that claims by itself."""


class Workers(msgspec.Struct, omit_defaults=True):
    """The worker processes that report that they are alive."""

    workers: list[WorkerProcess]
    partly: bool = False
    """Whether there are more reports than were read: of a namespace those of 256 KiB."""


def list_workers(
    registers: Iterable[str], now: int, own: Callable[[str], str | None] = lambda queue: queue
) -> Steps[Workers]:
    """Read the reports of worker processes, sorted by holder.

    Within a register, all reports of a holder are about one process, such as a program that claims
    at several servers: they are merged. In another register the same name is another process, since
    each client may report any name in its own.

    Args:
        registers: the queues with reports; see `bide.observing.heartbeat`.
        now: the store's clock, in Unix milliseconds.
        own: returns the caller's name of a queue; `None`: it is not for the caller.
    """
    workers: dict[tuple[str, str], WorkerProcess] = {}  # by holder and register
    reports, partly = yield from recent_reports(registers, now)
    for register, report, silent in reports:
        busy = {name: state for queue, state in report.busy.items() if (name := own(queue))}
        stops = own(InternalQueue.STOPS.beside(register)) if report.supervised else None
        for holder, queues in report.workers.items():
            names = sorted(filter(None, map(own, queues)))
            if not names:
                continue
            worker = WorkerProcess(holder, names, busy, silent, stops)
            key = holder, register
            workers[key] = _merged(workers[key], worker) if key in workers else worker
    return Workers([workers[key] for key in sorted(workers)], partly)


def _merged(report: WorkerProcess, newer: WorkerProcess) -> WorkerProcess:
    """Return what two reports say of a process; one of them may be overdue.

    That may be one of a dead process, whose name another one has now.
    """
    silent = None
    if report.silent is not None and newer.silent is not None:
        silent = min(report.silent, newer.silent)
    queues = sorted({*report.queues, *newer.queues})
    return WorkerProcess(
        report.holder, queues, report.busy | newer.busy, silent, report.stops or newer.stops
    )


def request_stop(stops: str, holder: str, actor: str | None) -> Put:
    """Return the command that asks the supervisor of a process to replace it."""
    data = msgspec.json.encode({"actor": actor})
    item = Item(check_name(holder, "holder"), data, delay=VALID_MS)
    return Put(stops, [item], "replace", actor=actor)


def withdraw_stop(stops: str, holder: str) -> Cancel:
    """Return the command that deletes a request: done means that no supervisor has taken it."""
    return Cancel(stops, [holder])


def find_requests(holders: list[str], stops: str = STOPS) -> Find:
    """Return the command that finds the requests about some processes, by holder."""
    return Find(stops, holders)


def take_requests(holders: list[str]) -> Steps[dict[str, str]]:
    """Delete the requests about some processes; return who made each, by holder.

    Args:
        holders: the names under which the processes claim.
    """
    requesters: dict[str, str] = {}
    reply: Found = yield find_requests(holders)
    for message in reply.messages:
        if message is not None:
            withdrawn: Outcomes = yield withdraw_stop(STOPS, message.id)
            (outcome,) = withdrawn.outcomes
            requester = _requester(message)
            if requester is not None and outcome.done:  # else another supervisor has taken it
                requesters[message.id] = requester
    return requesters


def _requester(message: Message) -> str | None:
    """Return who made a request, "an unknown user" if that is missing; `None` if it is void.

    A server may withhold the body. The request counts: it is deleted, so no other supervisor finds
    it.
    """
    if message.state != "delayed":
        return None
    if not message.data:
        return _UNKNOWN_USER
    try:
        request: Any = msgspec.json.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    name = request.get("actor") if isinstance(request, dict) else None
    return name if isinstance(name, str) else _UNKNOWN_USER


MOST_GAPS = 5
"""How many gaps of a queue a process reports at most."""

_log = logger("bide.worker")


class SeenProcess(NamedTuple):
    """What is known of another process."""

    report: Report
    until: float
    """When it was last known to be at work, in Unix milliseconds; infinity: it is."""


async def read_gaps(lane: Lane, queues: Sequence[str], began: int) -> dict[str, list[Span]]:
    """Read the reports of other processes; return for each queue when no worker served it.

    A process reports when it began, and the gaps before that. A process that ended without a
    farewell is known by its last report until that is deleted; one that took its leave is not.

    Args:
        lane: the lane to the store.
        queues: those that this process serves.
        began: when this process began, in Unix milliseconds.
    """
    others: list[SeenProcess] = []
    try:
        page = expect(Page, await lane.acall(Scan(REGISTER, "next", limit=READ_MOST)))
    except StoreError as error:  # such as a token that may not read: the others are unknown
        _log.debug("the reports of other workers could not be read: %s", error)
    else:
        for message in page.messages:
            report = read(message)
            if report is not None:
                others.append(seen_of(report, message.due, began))
    return gaps_before(queues, others, began)


def seen_of(report: Report, due: int, now: int) -> SeenProcess:
    """Return what a report tells of its process.

    Args:
        report: the report.
        due: when its message is due: `SILENT` after the report, unless another one replaces it.
        now: the time, in Unix milliseconds.
    """
    return SeenProcess(report, float("inf") if due > now else due - SILENT)


def gaps_before(
    queues: Iterable[str], others: Sequence[SeenProcess], began: int
) -> dict[str, list[Span]]:
    """Return for each queue when no worker served it before this process began.

    Args:
        queues: those that this process serves.
        others: the other processes that are or were at work.
        began: when this process began, in Unix milliseconds.

    Example:
        >>> old = Report({"web1:7": ["q"]}, began=100)
        >>> gaps_before(["q", "r"], [SeenProcess(old, 500.0)], 900)
        {'q': [(0.0, 100.0), (500.0, 900.0)], 'r': [(0.0, 900.0)]}
    """
    return {queue: _gaps(queue, others, float(began)) for queue in queues}


def _gaps(queue: str, others: Sequence[SeenProcess], began: float) -> list[Span]:
    """Return when no worker served a queue before this process began, the latest gaps."""
    workers = [
        worker
        for worker in others
        if any(queue in names for names in worker.report.workers.values())
    ]
    served = sorted((float(worker.report.began), min(worker.until, began)) for worker in workers)
    first_began = min((start for start, _ in served), default=began)
    # Of the time before the first process that is known, the processes report what they know.
    reported = {
        (start, end)
        for worker in workers
        for start, end in worker.report.gaps.get(queue, ())
        if end <= first_began
    }
    gaps = sorted(reported) or [(0.0, first_began)]
    served_until = first_began
    for start, end in (*served, (began, began)):
        if start > served_until:
            gaps.append((served_until, start))
        served_until = max(served_until, end)
    return gaps[-MOST_GAPS:]
