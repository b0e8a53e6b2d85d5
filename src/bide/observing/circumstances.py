"""What the store keeps elsewhere about a message: who serves its queue, and how it ended."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from bide.lane.lane import Lane
from bide.lane.steps import Steps
from bide.model.commands import Command, Explain, Find, History, Scan
from bide.model.errors import AccessDenied
from bide.model.identity import split_name
from bide.model.internal_queues import InternalQueue
from bide.model.replies import (
    Ends,
    Explained,
    Found,
    Page,
    Serving,
    Subscribed,
)
from bide.observing.explanation import Explanation
from bide.observing.heartbeat import READ_MOST, REGISTER
from bide.observing.workers import list_workers

T = TypeVar("T")


class _Subscription(msgspec.Struct):
    """What counts of a stored subscription; see `bide.targets.http.subscription`."""

    queue: str
    name: str
    paused: bool = False
    reason: str = ""


class _Circuit(msgspec.Struct):
    """What counts of a stored circuit; see `bide.targets.http.receiver`."""

    since: int | None = None
    until: int = 0
    error: str = ""


def explaining(queue: str, id: str, lane: Lane) -> Steps[Explanation]:
    """Explain where a message is, by what the store and the workers' reports say."""
    facts: Explained = yield Explain(queue, id)
    facts = yield from look_further(queue, id, facts, around=lane.capabilities.shared)
    return Explanation(id, queue, facts)


def look_further(
    queue: str,
    id: str | None,
    explained: Explained,
    *,
    around: bool,
    present: Mapping[str, Iterable[str]] | None = None,
) -> Steps[Explained]:
    """Add what the store keeps elsewhere.

    That is how a message that is gone ended, and if `around`, who serves the queue of a ready
    message, and which subscriptions send nothing.

    Args:
        queue: its name in the store.
        id: the id of the message; `None`: the explanation is about the queue alone.
        explained: the explanation of the store.
        around: whether to look at workers and subscriptions.
        present: holders that claim through this server, and their queues.
    """
    if id is not None and explained.state is None and explained.end is None:
        reply: Ends | None = yield from _allowed(History(queue, id, max_bytes=0))
        if reply is not None and reply.ends:
            latest, *_ = reply.ends
            end = msgspec.structs.replace(latest, result=None)  # which not all may see
            explained = msgspec.structs.replace(explained, end=end)
    if not around or explained.state != "ready" or explained.workers is not None:
        return explained
    workers = yield from _workers(queue, explained.now, present or {})
    subscriptions = yield from _subscriptions(queue)
    return msgspec.structs.replace(explained, workers=workers, subscriptions=subscriptions)


def _workers(
    queue: str, now: int, present: Mapping[str, Iterable[str]]
) -> Steps[list[Serving] | None]:
    """Return the workers that serve a queue; `None` if perhaps not all are known."""
    by_holder = {holder: Serving(holder) for holder, queues in present.items() if queue in queues}
    registers = {REGISTER, InternalQueue.WORKERS.beside(queue)}
    try:
        listing = yield from list_workers(registers, now, {queue: queue}.get)
    except AccessDenied:
        return None
    if listing.partly:
        return None
    for worker in listing.workers:
        if worker.silent is None:
            # A `Serving` has the fields of a `Busy` after its holder.
            busy = msgspec.structs.astuple(worker.busy[queue]) if queue in worker.busy else ()
            by_holder[worker.holder] = Serving(worker.holder, *busy)
    return sorted(by_holder.values(), key=lambda worker: worker.holder)


def _subscriptions(queue: str) -> Steps[list[Subscribed] | None]:
    """Return the subscriptions of a queue that send nothing; `None` if they are not known."""
    scan = Scan(InternalQueue.SUBSCRIPTIONS.value, "delayed", limit=READ_MOST)
    page: Page | None = yield from _allowed(scan)
    if page is None:
        return None
    all_subscriptions = {
        message.id: _decoded(message.data, _Subscription) for message in page.messages
    }
    subscriptions = {
        id: subscription
        for id, subscription in all_subscriptions.items()
        if subscription is not None and subscription.queue == queue
    }
    if not subscriptions:
        return []
    # A circuit has the id of its subscription.
    find = Find(InternalQueue.CIRCUITS.value, list(subscriptions))
    reply: Found | None = yield from _allowed(find)
    messages = reply.messages if reply is not None else [None] * len(subscriptions)
    idle: list[Subscribed] = []
    for subscription, message in zip(subscriptions.values(), messages, strict=False):
        circuit = None if message is None else _decoded(message.data, _Circuit)
        _namespace, name = split_name(subscription.name)
        if subscription.paused:
            idle.append(Subscribed(name, paused=True, reason=subscription.reason))
        elif circuit is not None and circuit.since is not None:
            idle.append(
                Subscribed(
                    name,
                    paused=False,
                    reason=circuit.error,
                    since=circuit.since,
                    until=circuit.until,
                )
            )
    return idle


def _decoded(data: bytes, kind: type[T]) -> T | None:
    """Decode a record; one that is damaged is left out."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _allowed(command: Command) -> Steps[Any]:
    """Return the reply to a command; `None` if the caller may not ask for it."""
    try:
        return (yield command)
    except AccessDenied:
        return None
