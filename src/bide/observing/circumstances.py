"""What the store keeps elsewhere about a message: who serves its queue, and how it ended."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Command, Find, History, Scan
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
from bide.observing.heartbeat import READ_MOST, REGISTER
from bide.observing.workers import Workers, list_workers

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
        id: of the message; `None`: of no message.
        explained: the explanation of the store.
        around: whether to look at workers and subscriptions.
        present: holders that claim through this server, and their queues.
    """
    if id is not None and explained.state is None and explained.end is None:
        reply: Ends | None = yield from _allowed(History(queue, id, max_bytes=0))
        if reply is not None and reply.ends:
            end = msgspec.structs.replace(reply.ends[0], result=None)  # which not all may see
            explained = msgspec.structs.replace(explained, end=end)
    if not around or explained.state != "ready" or explained.workers is not None:
        return explained
    by_holder = {holder: Serving(holder) for holder, its in (present or {}).items() if queue in its}
    registers = {REGISTER, InternalQueue.WORKERS.beside(queue)}
    try:
        listed = yield from list_workers(registers, explained.now, {queue: queue}.get)
    except AccessDenied:
        listed = Workers([], partly=True)
    for worker in listed.workers:
        if worker.silent is None:
            busy = msgspec.structs.astuple(worker.busy[queue]) if queue in worker.busy else ()
            by_holder[worker.holder] = Serving(worker.holder, *busy)
    return msgspec.structs.replace(
        explained,
        workers=None
        if listed.partly
        else sorted(by_holder.values(), key=lambda worker: worker.holder),
        subscriptions=(yield from _subscriptions(queue)),
    )


def _subscriptions(queue: str) -> Steps[list[Subscribed] | None]:
    """Return the subscriptions of a queue that send nothing."""
    scan = Scan(InternalQueue.SUBSCRIPTIONS.value, "delayed", limit=READ_MOST)
    page: Page | None = yield from _allowed(scan)
    if page is None:
        return None
    kept = {message.id: _decoded(message.data, _Subscription) for message in page.messages}
    subscriptions = {
        key: subscription
        for key, subscription in kept.items()
        if subscription is not None and subscription.queue == queue
    }
    if not subscriptions:
        return []
    find = Find(InternalQueue.CIRCUITS.value, list(subscriptions))
    answer: Found | None = yield from _allowed(find)
    circuits = answer.messages if answer is not None else [None] * len(subscriptions)
    subscribed = []
    for subscription, stored in zip(subscriptions.values(), circuits, strict=False):
        circuit = None if stored is None else _decoded(stored.data, _Circuit)
        own = split_name(subscription.name)[1]
        if subscription.paused:
            subscribed.append(Subscribed(own, True, subscription.reason))
        elif circuit is not None and circuit.since is not None:
            subscribed.append(Subscribed(own, False, circuit.error, circuit.since, circuit.until))
    return subscribed


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
