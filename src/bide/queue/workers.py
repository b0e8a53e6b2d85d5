"""Worker processes: list them, and have one replaced."""

import time

from bide.lane.lane import Lane
from bide.model.commands import Queues
from bide.model.errors import InvalidArgument
from bide.model.identity import actor_of
from bide.model.replies import Found, Names, Outcomes, expect
from bide.model.times import Duration, milliseconds
from bide.observing.explain.facts import follow
from bide.observing.heartbeat import QUEUE, is_register
from bide.observing.workers import (
    WorkerProcess,
    find_requests,
    list_workers,
    request_stop,
    withdraw_stop,
)
from bide.queue.stores import lane_to
from bide.queue.values import own_name

LOOK = 0.2
"""Seconds between two looks whether a supervisor has taken a request."""


def workers(url: str | None = None) -> list[WorkerProcess]:
    """List the worker processes of a store: those that report that they are alive.

    Over HTTP these are the ones of the token's namespace. In a coroutine, call it with
    `asyncio.to_thread`.

    Args:
        url: of the store, or of a server; the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.

    Raises:
        StoreError: the store cannot be read.
    """
    with lane_to(url) as lane:
        return read_workers(lane)


def stop_worker(
    holder: str, url: str | None = None, *, actor: str | None = None, wait: Duration = 15
) -> bool:
    """Have a worker process replaced, such as one that hangs, by its supervisor.

    The supervisor starts a new process, and asks the old one to end: its handlers get the grace
    time, then it is killed. Its messages are released, or come back when their leases end.

    Args:
        holder: the name of the process, as `workers` lists it: "web1:4711".
        url: as for `workers`.
        actor: who asks for it, for the log of the worker.
        wait: how long to wait for the supervisor, which looks every five seconds.

    Returns:
        Whether a supervisor has taken the request; if not, it was withdrawn.

    Raises:
        InvalidArgument: there is no such process, or it has no supervisor.
        StoreError: the store failed, or the token has no right "admin".
    """
    with lane_to(url) as lane:
        return ask_to_stop(lane, holder, actor or actor_of(own_name()), wait)


def read_workers(lane: Lane) -> list[WorkerProcess]:
    """List the worker processes of a store."""
    names = expect(Names, lane.call(Queues(""))).names
    registers = {QUEUE, *filter(is_register, names)}  # a server does not name its own
    return follow(list_workers(sorted(registers), time.time_ns() // 1_000_000), lane.call)


def ask_to_stop(lane: Lane, holder: str, actor: str, wait: Duration) -> bool:
    """Request that a process is replaced, and wait until its supervisor has taken the request."""
    found = [one for one in read_workers(lane) if one.holder == holder]
    if not found:
        raise InvalidArgument(
            f"no worker {holder!r} reports that it is alive; `bide workers` lists those that do"
        )
    stops = found[0].stops
    if stops is None:
        raise InvalidArgument(
            f"{holder} has no supervisor of `bide worker` that could replace it; end the process "
            "on its own machine"
        )
    deadline = time.monotonic() + milliseconds(wait, "wait") / 1000
    lane.call(request_stop(stops, holder, actor))
    while time.monotonic() < deadline:
        time.sleep(LOOK)
        if expect(Found, lane.call(find_requests([holder], stops))).messages == [None]:
            return True
    gone = expect(Outcomes, lane.call(withdraw_stop(stops, holder)))
    return not gone.outcomes[0].done
