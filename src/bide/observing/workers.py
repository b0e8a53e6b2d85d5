"""Worker processes as they report themselves, and requests to replace one.

A request is a message in a queue from which nothing claims: its id is the holder. The supervisor of
that process looks there every few seconds, and deletes what it takes.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Cancel, Find, Put
from bide.model.identity import check_name
from bide.model.message import Item, Message
from bide.observing.heartbeat import QUEUE, STOPS, Busy, recent_reports

VALID = 60_000
"""Milliseconds after which a request is void: the name may belong to another process by then."""


class WorkerProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker process, as its last report says."""

    holder: str
    """The name under which it claims: its host and process."""
    queues: list[str]
    """The queues that it serves."""
    busy: dict[str, Busy] = {}
    """How many messages of each queue it handles, and the one that it has handled for longest."""
    silent: int | None = None
    """For how many milliseconds its report has been overdue."""
    stops: str | None = None
    """The queue in which a request to replace it is put; `None`: it has no supervisor, such as a
    program that claims by itself."""


def is_stops(queue: str) -> bool:
    """Tell whether a queue has requests to replace processes.

    Example:
        >>> is_stops("bide:stops"), is_stops("shop/bide:stops"), is_stops("orders")
        (True, True, False)
    """
    return queue.rpartition("/")[2] == STOPS


def list_workers(
    registers: Iterable[str], now: int, own: Callable[[str], str | None] = lambda queue: queue
) -> Steps[list[WorkerProcess]]:
    """Read the reports of worker processes, sorted by holder.

    Args:
        registers: the queues with reports; see `bide.observing.heartbeat`.
        now: the store's clock, in Unix milliseconds.
        own: returns the caller's name of a queue; `None`: it is not for the caller.
    """
    found: dict[str, WorkerProcess] = {}
    for register in registers:
        reports = yield from recent_reports(register, now)
        stops = register.removesuffix(QUEUE) + STOPS
        for report, silent in reports:
            busy = {name: one for queue, one in report.busy.items() if (name := own(queue))}
            for holder, queues in report.workers.items():
                named = sorted(name for queue in queues if (name := own(queue)))
                if named:
                    where = own(stops) if report.supervised else None
                    found[holder] = WorkerProcess(holder, named, busy, silent, where)
    return [found[holder] for holder in sorted(found)]


def request_stop(stops: str, holder: str, actor: str | None) -> Put:
    """Return the command that asks the supervisor of a process to replace it."""
    data = msgspec.json.encode({"actor": actor})
    item = Item(check_name(holder, "holder"), data, delay=VALID)
    return Put(stops, [item], "replace", actor=actor)


def withdraw_stop(stops: str, holder: str) -> Cancel:
    """Return the command that deletes a request: done means that no supervisor has taken it."""
    return Cancel(stops, [holder])


def find_requests(holders: list[str], stops: str = STOPS) -> Find:
    """Return the command that finds the requests about some processes."""
    return Find(stops, holders)


def asked(message: Message) -> str | None:
    """Return who made a request, "somebody" if that is unknown; `None` if it is void."""
    if message.state != "delayed":
        return None
    try:
        told: Any = msgspec.json.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    name = told.get("actor") if isinstance(told, dict) else None
    return name if isinstance(name, str) else "somebody"
