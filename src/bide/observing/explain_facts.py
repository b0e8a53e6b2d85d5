"""What an explanation needs beside the store's own facts: workers and subscriptions."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from bide.lane.steps import Steps, arun_steps, run_steps
from bide.model.commands import Command, Find, History, Scan
from bide.model.errors import AccessDenied
from bide.model.identity import RESERVED
from bide.model.replies import Ends, Explained, Found, Page, Serving, Subscribed
from bide.observing.heartbeat import QUEUE, read

READ_MOST = 1_000
"""How many reports of workers, and how many subscriptions, are read."""

T = TypeVar("T")


class _Subscription(msgspec.Struct):
    """What counts of a stored subscription; see `bide.targets.http.subscription`."""

    queue: str
    name: str
    namespace: str | None = None
    paused: bool = False
    reason: str = ""


class _Circuit(msgspec.Struct):
    """What counts of a stored circuit; see `bide.targets.http.receiver`."""

    since: int | None = None
    until: int = 0
    error: str = ""


def _look_around(
    queue: str, told: Explained, present: Mapping[str, Iterable[str]] | None = None
) -> Steps[Explained]:
    """Add who serves the queue of a ready message, and which subscriptions send nothing.

    Args:
        queue: its name in the store.
        told: what the store knows.
        present: holders that claim through this server, and their queues.
    """
    if told.state != "ready" or told.workers is not None:
        return told
    home, slash, _ = queue.rpartition("/")
    found = {
        holder: Serving(holder) for holder, queues in (present or {}).items() if queue in queues
    }
    known = True
    for register in {QUEUE, f"{home}{slash}{QUEUE}"}:
        page: Page | None = yield Scan(register, "delayed", limit=READ_MOST)
        known = known and page is not None
        for message in page.messages if page is not None else ():
            report = read(message)
            for holder, queues in report.workers.items() if report is not None else ():
                if report is not None and queue in queues:
                    found[holder] = _serving(holder, queue, report.busy)
    subscriptions = yield from _subscriptions(queue, told.now)
    return msgspec.structs.replace(
        told,
        workers=sorted(found.values(), key=lambda one: one.holder) if known else None,
        subscriptions=subscriptions,
    )


def _look_back(queue: str, id: str, told: Explained) -> Steps[Explained]:
    """Add how a message that is gone ended, if its queue remembers it.

    Args:
        queue: its name in the store.
        id: of the message.
        told: what the store knows.
    """
    if told.state is not None or told.end is not None:
        return told
    reply: Ends | None = yield History(queue, id, max_bytes=0)
    if reply is None or not reply.ends:
        return told
    end = msgspec.structs.replace(reply.ends[0], result=None)  # which not all may see
    return msgspec.structs.replace(told, end=end)


def look_further(
    queue: str, id: str | None, told: Explained, *, around: bool,
    present: Mapping[str, Iterable[str]] | None = None,
) -> Steps[Explained]:  # fmt: skip
    """Add what the store keeps elsewhere: see `_look_back` and, if `around`, `_look_around`."""
    if id is not None:
        told = yield from _look_back(queue, id, told)
    return (yield from _look_around(queue, told, present)) if around else told


def _serving(holder: str, queue: str, busy: Mapping[str, Any]) -> Serving:
    one = busy.get(queue)
    if one is None:
        return Serving(holder)
    return Serving(holder, one.places, one.running, one.longest, one.since)


def _subscriptions(queue: str, now: int) -> Steps[list[Subscribed] | None]:
    """Return the subscriptions of a queue that send nothing."""
    page: Page | None = yield Scan(f"{RESERVED}/subscriptions", "delayed", limit=READ_MOST)
    if page is None:
        return None
    kept = {message.id: _decoded(message.data, _Subscription) for message in page.messages}
    mine = {key: one for key, one in kept.items() if one is not None and _source(one) == queue}
    if not mine:
        return []
    answer: Found | None = yield Find(f"{RESERVED}/circuits", list(mine))
    circuits = answer.messages if answer is not None else [None] * len(mine)
    found = []
    for one, stored in zip(mine.values(), circuits, strict=False):
        circuit = None if stored is None else _decoded(stored.data, _Circuit)
        if one.paused:
            found.append(Subscribed(one.name, True, one.reason))
        elif circuit is not None and circuit.since is not None:
            found.append(Subscribed(one.name, False, circuit.error, circuit.since, circuit.until))
    return found


def _source(one: _Subscription) -> str:
    return one.queue if one.namespace is None else f"{one.namespace}/{one.queue}"


def _decoded(data: bytes, kind: type[T]) -> T | None:
    """Decode a record; one that is damaged, or of an older bide, is left out."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def follow(steps: Steps[T], ask: Callable[[Command], Any]) -> T:
    """Run some steps; what the caller may not ask is `None` to them."""

    def allowed(command: Command) -> Any:
        try:
            return ask(command)
        except AccessDenied:
            return None

    return run_steps(steps, allowed)


async def afollow(steps: Steps[T], ask: Callable[[Command], Awaitable[Any]]) -> T:
    """Async form of `follow`."""

    async def allowed(command: Command) -> Any:
        try:
            return await ask(command)
        except AccessDenied:
            return None

    return await arun_steps(steps, allowed)
