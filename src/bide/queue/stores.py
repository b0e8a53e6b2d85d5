"""Ask a whole store: which queues it has, which messages match, and which workers serve it."""

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import named_url
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import Steps, run_steps
from bide.model.commands import Count, Queues
from bide.model.errors import InvalidArgument
from bide.model.identity import actor_of, check_prefix
from bide.model.internal_queues import InternalQueue, is_listed
from bide.model.replies import Counts, Found, Names, Outcomes, expect
from bide.model.times import Duration, Moment, milliseconds
from bide.observing.workers import (
    WorkerProcess,
    Workers,
    find_requests,
    list_workers,
    request_stop,
    withdraw_stop,
)
from bide.queue.arguments import own_name
from bide.queue.search import SearchPage, query_of, steps_in_store
from bide.threads import in_thread

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def lane_to(url: str | None) -> Iterator[Lane]:
    """Open the store of a URL, or of the environment, for the length of a block."""
    lane = open_lane(named_url(url), SYSTEM_CLOCK)
    try:
        yield lane
    finally:
        close_lane(lane)


def _listing(prefix: str) -> Steps[dict[str, Counts]]:
    """Return the queues whose names have a prefix, with their counts."""
    reply: Names = yield Queues(check_prefix(prefix))
    counts: dict[str, Counts] = {}
    for name in reply.names:
        if is_listed(name, prefix):
            counts[name] = yield Count(name)
    return counts


def queues(url: str | None = None, prefix: str = "") -> dict[str, Counts]:
    """Return the queues of a store by name, in their order, with their counts.

    Args:
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        prefix: how their names begin. Queues that bide uses itself are listed only with theirs.

    Raises:
        InvalidArgument: the prefix is not text, or has control characters.
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> orders = bide.Queue("orders", "memory://listed")
        >>> outcome = orders.put({"order": 42}, delay="1h")
        >>> for name, counts in bide.queues("memory://listed").items():
        ...     print(name, counts.sizes.delayed)
        orders 1
    """
    with lane_to(url) as lane:
        return run_steps(_listing(prefix), lane.call)


def search(
    url: str | None = None,
    *,
    queue: str = "",
    id: str | None = None,
    group: str | None = None,
    state: str | None = None,
    after: Moment | None = None,
    before: Moment | None = None,
    error: str | None = None,
    header: str | None = None,
    body: str | None = None,
    repeats: bool = False,
    limit: int = 100,
    read: int = 10_000,
    cursor: str | None = None,
) -> SearchPage:
    """Search the messages of all queues of a store; all that is given must hold.

    A group, a range of due times of delayed messages and, on SQLite and PostgreSQL, the beginning
    of an id are found at once. Anything else reads message by message, a bounded number at a time:
    the page says how many, and the next call goes on with its `cursor`.

    Args:
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        queue: how the names of the queues begin; by default all.
        id: how the id begins.
        group: its group.
        state: its state.
        after: due at this time or later,
        before: and due before this time.
        error: a text in the reason of the last failure.
        header: NAME, or NAME=TEXT for a header that contains a text.
        body: a text in the body.
        repeats: only those that repeat.
        limit: how many messages fill a page.
        read: how many messages are read for it at most.
        cursor: of the page before.

    Raises:
        InvalidArgument: nothing to search for is given, or a value is not valid.
        AccessDenied: a server withholds the bodies that are searched.
        StoreError: the store failed.

    Example:
        >>> import bide
        >>> mail = bide.Queue("mail", "memory://searched")
        >>> outcome = mail.put("to Ann", id="note-7", delay="1h")
        >>> page = bide.search("memory://searched", id="note-", body="Ann")
        >>> [message.id for message in page.messages], page.cursor
        (['note-7'], None)
    """
    query = query_of(
        id=id,
        group=group,
        state=state,
        after=after,
        before=before,
        error=error,
        header=header,
        body=body,
        repeats=repeats,
    )
    with lane_to(url) as lane:
        ordered = lane.capabilities.ids_ordered
        steps = steps_in_store(queue, query, cursor, limit, read, ids_ordered=ordered)
        return run_steps(steps, lane.call)


def _async_form(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a function as a coroutine function, which runs it in a thread."""

    @wraps(function)
    async def call(*args: P.args, **options: P.kwargs) -> R:
        return await in_thread(partial(function, *args, **options))

    call.__name__ = call.__qualname__ = f"a{function.__name__}"
    call.__doc__ = f"Async form of `{function.__name__}`."
    return call


aqueues = _async_form(queues)
asearch = _async_form(search)


POLL = 0.2
"""Seconds between two looks whether a supervisor has taken a request."""


def workers(url: str | None = None) -> list[WorkerProcess]:
    """List the worker processes of a store: those that report that they are alive.

    Over HTTP these are the ones of the token's namespace. Of each namespace, 256 KiB of reports are
    read, and 1,000 at most. In a coroutine, call it with `asyncio.to_thread`.

    Args:
        url: of the store, or of a server; the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.

    Raises:
        StoreError: the store cannot be read.
    """
    with lane_to(url) as lane:
        return read_workers(lane).workers


def stop_worker(
    holder: str, url: str | None = None, *, actor: str | None = None, wait: Duration = 15
) -> bool:
    """Have a worker process replaced, such as one that hangs, by its supervisor.

    The supervisor starts a new process, and asks the old one to end: its handlers get the grace
    time, then it is killed. Its messages are released, or come back when their leases end.

    Args:
        holder: the name of the process, as `workers` lists it: "web1:4711".
        url: of the store, or of a server; the environment's `BIDE_URL`, or else
            `sqlite:///bide.db`.
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


def read_workers(lane: Lane) -> Workers:
    """List the worker processes of a store."""
    names = expect(Names, lane.call(Queues(""))).names
    registers = {name for name in names if InternalQueue.WORKERS.matches(name)}
    registers.add(InternalQueue.WORKERS.value)  # a server does not name its own
    return run_steps(list_workers(sorted(registers), time.time_ns() // 1_000_000), lane.call)


def ask_to_stop(lane: Lane, holder: str, actor: str, wait: Duration) -> bool:
    """Request that a process is replaced, and wait until its supervisor has taken the request.

    Args:
        lane: to the store.
        holder: the name of the process.
        actor: who asks for it.
        wait: how long to wait.

    Returns:
        Whether a supervisor has taken the request; if not, it was withdrawn.

    Raises:
        InvalidArgument: there is no such process, or it has no supervisor.
    """
    # It may report to several registers: one in each namespace that it serves.
    workers = [worker for worker in read_workers(lane).workers if worker.holder == holder]
    if not workers:
        raise InvalidArgument(
            f"no running worker is named {holder!r}; `bide workers` lists them all"
        )
    stop_queues = [worker.stops for worker in workers if worker.stops is not None]
    if not stop_queues:
        raise InvalidArgument(
            f"{holder} has no supervisor of `bide worker` that could replace it; end the process "
            "on its own machine"
        )
    deadline = time.monotonic() + milliseconds(wait, "wait") / 1000
    for queue in stop_queues:
        lane.call(request_stop(queue, holder, actor))
    finds = [find_requests([holder], queue) for queue in stop_queues]
    while time.monotonic() < deadline:
        time.sleep(POLL)
        if any(expect(Found, lane.call(find)).messages == [None] for find in finds):
            break  # the supervisor has deleted the request: it has taken it
    withdrawals = [
        expect(Outcomes, lane.call(withdraw_stop(queue, holder))) for queue in stop_queues
    ]
    return not all(reply.outcomes[0].done for reply in withdrawals)
