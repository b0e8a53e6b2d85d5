"""What the store keeps elsewhere about a message: who serves its queue, and how it ended."""

from collections import defaultdict
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
from bide.observing.heartbeat import READ_MOST, REGISTER, Report, recent_reports

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


_ReportsByQueue = dict[str, list[tuple[str, Report]]]
"""By queue: the holders that serve it, each with the report that says so."""


class Surroundings:
    """Who serves queues, and their subscriptions; read once for the explanations of a batch."""

    def __init__(self) -> None:
        self._reports: dict[frozenset[str], _ReportsByQueue | None] = {}
        """By registers: what is reported there; `None`: not all is known."""
        self._subscriptions: dict[str, dict[str, _Subscription]] | None = None
        """All subscriptions by queue and id, once they are read."""
        self._idle: dict[str, list[Subscribed] | None] = {}
        """By queue: the subscriptions that send nothing."""

    def workers_of(self, queue: str, now: int) -> Steps[list[Serving] | None]:
        """Return the workers that report that they serve a queue; `None`: not all may be known.

        Args:
            queue: its name in the store.
            now: the store's clock, in Unix milliseconds.
        """
        registers = frozenset({REGISTER, InternalQueue.WORKERS.beside(queue)})
        if registers not in self._reports:
            self._reports[registers] = yield from _reports(registers, now)
        by_queue = self._reports[registers]
        return None if by_queue is None else _serving(queue, by_queue.get(queue, []))

    def idle_subscriptions_of(self, queue: str) -> Steps[list[Subscribed] | None]:
        """Return the subscriptions of a queue that send nothing; `None` if they are not known."""
        if queue not in self._idle:
            if self._subscriptions is None:
                self._subscriptions = yield from _subscriptions()
            if self._subscriptions is None:
                return None
            self._idle[queue] = yield from _idle(self._subscriptions.get(queue, {}))
        return self._idle[queue]


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
    surroundings: Surroundings | None = None,
) -> Steps[Explained]:
    """Add to the store's explanation what takes further commands.

    Of a message that is gone: how it ended. Of a ready one, if `around`: which workers serve its
    queue, and which subscriptions send nothing.

    Args:
        queue: its name in the store.
        id: the id of the message; `None`: the explanation is about the queue alone.
        explained: the explanation of the store.
        around: whether to look at workers and subscriptions.
        present: holders that claim through this server, and their queues.
        surroundings: what was read for other explanations; `None`: nothing.
    """
    if id is not None and explained.state is None and explained.end is None:
        reply: Ends | None = yield from _allowed(History(queue, id, max_bytes=0))
        if reply is not None and reply.ends:
            latest, *_ = reply.ends
            # Without its result: who may explain a message may not always read results.
            end = msgspec.structs.replace(latest, result=None)
            explained = msgspec.structs.replace(explained, end=end)
    if not around or explained.state != "ready" or explained.workers is not None:
        return explained
    surroundings = surroundings or Surroundings()
    workers = yield from surroundings.workers_of(queue, explained.now)
    if workers is not None and present:
        by_holder = {
            holder: Serving(holder) for holder, queues in present.items() if queue in queues
        }
        by_holder |= {worker.holder: worker for worker in workers}
        workers = sorted(by_holder.values(), key=lambda worker: worker.holder)
    subscriptions = yield from surroundings.idle_subscriptions_of(queue)
    return msgspec.structs.replace(explained, workers=workers, subscriptions=subscriptions)


def _reports(registers: Iterable[str], now: int) -> Steps[_ReportsByQueue | None]:
    """Return what workers report in registers, by queue; `None` if not all is known."""
    try:
        reports, partly = yield from recent_reports(sorted(registers), now)
    except AccessDenied:
        return None
    if partly:
        return None
    by_queue: _ReportsByQueue = defaultdict(list)
    for _register, report, silent in reports:
        if silent is None:
            for holder, queues in report.workers.items():
                entry = holder, report
                for queue in queues:
                    by_queue[queue].append(entry)
    return by_queue


def _serving(queue: str, reports: Iterable[tuple[str, Report]]) -> list[Serving]:
    """Return the workers that serve a queue, by holder, of the reports about it.

    Several reports may be about one holder, the oldest first; the last one that says how busy it is
    counts, as in `bide.observing.workers`.
    """
    by_holder: dict[str, Serving] = {}
    for holder, report in reports:
        busy = report.busy.get(queue)
        if busy is not None:
            # A `Serving` has the fields of a `Busy` after its holder.
            by_holder[holder] = Serving(holder, *msgspec.structs.astuple(busy))
        else:
            by_holder.setdefault(holder, Serving(holder))
    return [by_holder[holder] for holder in sorted(by_holder)]


def _subscriptions() -> Steps[dict[str, dict[str, _Subscription]] | None]:
    """Return all subscriptions, by queue and id; `None` if they are not known."""
    scan = Scan(InternalQueue.SUBSCRIPTIONS.value, "delayed", limit=READ_MOST)
    page: Page | None = yield from _allowed(scan)
    if page is None:
        return None
    by_queue: dict[str, dict[str, _Subscription]] = {}
    for message in page.messages:
        subscription = _decoded(message.data, _Subscription)
        if subscription is not None:
            by_queue.setdefault(subscription.queue, {})[message.id] = subscription
    return by_queue


def _idle(subscriptions: Mapping[str, _Subscription]) -> Steps[list[Subscribed]]:
    """Return those of some subscriptions, by id, that send nothing."""
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
