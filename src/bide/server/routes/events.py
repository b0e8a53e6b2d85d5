"""Event streams: hints, counts of queues, workers, and states of subscriptions."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from bide.lane.steps import arun_steps
from bide.model.errors import Closed, StoreError, StoreUnavailable
from bide.model.replies import Counts
from bide.model.times import milliseconds
from bide.observing.sample import Sample, Worker, take_sample
from bide.server import wire
from bide.server.call import ApiCall
from bide.server.limits.request_bodies import ClientGone, unless_gone
from bide.server.operation import Routes
from bide.server.problem import Problem, invalid, of_bide
from bide.server.service import FailedLook
from bide.server.subscriptions.subscription_wire import SubscriptionState, state_of
from bide.targets.http.stats import Known

route = Routes("events")

T = TypeVar("T")

STREAM_TYPE = "text/event-stream"

COMMENT_EVERY = 15.0
"""Seconds without an event after which a comment is sent: proxies close idle connections."""


class EventsQuery(wire.RequestModel):
    """The events to send."""

    counts: wire.Span = 1
    """The least time between two events with changed counts; 0: send no counts."""
    workers: bool = False
    """As often, send changes of the workers of the queues and of their lateness."""
    prefix: wire.Prefix = ""
    """The prefix of the names of the queues."""


class SubscriptionOf(msgspec.Struct, omit_defaults=True):
    """The state of a subscription."""

    subscription: str
    queue: str
    state: SubscriptionState
    reason: str = ""
    """Why it is paused, or the last failure."""


@route("events", "GET", "/v1/events", "", {200: bytes}, content_type=STREAM_TYPE)
async def events(call: ApiCall, query: EventsQuery) -> None:
    """Stream events.

    Server-sent events: `hint` (a message of `queue` can be claimed in `wake_in` milliseconds; with
    an id after the name of the queue, that message was cancelled or has ended: this needs the right
    `read` or `consume`);
    `counts` (`queue`, `counts`) and, if requested, `workers` (the workers of the queues, how
    many messages each leases, and the lateness of the last minute); `subscription` (the new
    `state` of one, such as an open circuit, with the reason, whichever server pushes it), and
    `gone` (a `queue` or a `subscription` that was told of was deleted), which need the right
    `read`; `tick`, after all of these that have changed; and `problem`, a problem document, when
    the store is away or the token is no longer valid.
    """
    interval = milliseconds(wire.span(query.counts), "counts") / 1000
    if query.workers and not interval:
        raise invalid("counts", "workers are sent as often as counts")
    if interval:
        call.caller.need("read")
    with call.counted_among(call.service.streams):
        await call.response.begin_stream(STREAM_TYPE)
        stream = _Stream(call, interval, query)
        try:
            refusal = call.service.admission.until_refused(call.request.token)
            await unless_gone(call.request.body.receive, stream.run(), refusal)
        except Problem as problem:
            await stream.end(problem)
        except ClientGone:
            if not stream.ended:  # a client that has read the end leaves, too
                raise


class _Stream:
    """An event stream of one client."""

    def __init__(self, call: ApiCall, interval: float, query: EventsQuery) -> None:
        self._call = call
        self._interval = interval
        """Seconds between two looks at the store; 0: it is not looked at."""
        self._query = query
        self._counts: dict[str, Counts] = {}
        """The counts that were sent last, by queue."""
        self._workers: dict[str, Any] = {}
        """What was sent last of workers."""
        self._subscriptions: dict[str, SubscriptionOf] = {}
        """What was sent last of each subscription."""
        self.ended = False
        """Whether the client was sent the end of the stream."""
        self._sent = 0.0
        """When something was last sent, by the clock of the event loop."""

    async def run(self) -> None:
        """Send events until the server stops."""
        service, clock = self._call.service, asyncio.get_running_loop().time
        next_look = clock() if self._interval else float("inf")
        async with service.events.listening() as listener:
            await self._send(": bide\n\n")
            while not service.stopping.is_set():
                if clock() >= next_look:
                    await self._look_or_report()
                    next_look = clock() + self._interval
                next_comment = self._sent + COMMENT_EVERY
                try:
                    async with asyncio.timeout_at(min(next_comment, next_look)):
                        await listener.news.wait()
                except TimeoutError:
                    if next_comment <= next_look:
                        await self._send(": alive\n\n")
                else:
                    await self._send_hints(listener.take())
            await self.end()

    async def end(self, problem: Problem | None = None) -> None:
        """End the stream, with a problem unless the server stops."""
        if problem is not None:
            await self._send(_event("problem", problem.document))
        self.ended = True
        await self._call.response.end_stream()

    async def _look_or_report(self) -> None:
        """Look, or send a problem if the store is away; all streams share its error."""
        service = self._call.service
        try:
            async with service.looks.turn():
                failed_look = service.failed_look
                if failed_look is not None and failed_look.is_recent:
                    raise failed_look.error
                await self._look()
        except Closed:
            return  # the server stops, which ends this stream
        except StoreError as error:
            is_new = failed_look is None or error is not failed_look.error
            # Any other error may be about this caller alone, such as a denied queue.
            if is_new and isinstance(error, StoreUnavailable):
                service.failed_look = FailedLook(error, time.monotonic())
            problem = of_bide(error, service.client_text.of(error))
            await self._send(_event("problem", problem.document))

    async def _send_hints(self, hints: dict[str, int]) -> None:
        """Send when to look into which queues; of the store, in Unix milliseconds."""
        now = self._call.service.clock.now()
        events = [
            _event("hint", {"queue": own, "wake_in": max(0, wake - now)})
            for queue, wake in hints.items()
            if (own := self._own(queue)) is not None
        ]
        await self._send("".join(events))

    async def _look(self) -> None:
        """Send the counts of queues that have changed, and the workers."""
        service, caller = self._call.service, self._call.caller
        names = await self._call.names(self._query.prefix)
        now = service.clock.now()
        events: list[str] = []
        if self._query.workers:
            sample = await self._sample([caller.full(name) for name in names], now)
            counts_by_queue = self._of_caller(sample.queues)
            workers = self._workers_content(sample)
            if workers != self._workers:
                self._workers = workers
                events.append(_event("workers", workers))
        else:
            counts_by_queue = {name: await service.counts(caller.full(name)) for name in names}
        for name, counts in counts_by_queue.items():
            if self._counts.get(name) != counts:
                events.append(_event("counts", {"queue": name, "counts": counts}))
        gone = self._counts.keys() - counts_by_queue.keys()
        events += [_event("gone", {"queue": name}) for name in sorted(gone)]
        self._counts = counts_by_queue
        events += self._subscription_events(await service.pushing.known(), now)
        events.append(_event("tick", {"now": now}))
        await self._send("".join(events))
        self._call.visit.let_go()  # the replies are sent: an open stream keeps no room for them

    def _subscription_events(self, subscriptions: Mapping[str, Known], now: int) -> Iterator[str]:
        """Yield the events of subscriptions whose state has changed, or that are gone."""
        current: dict[str, SubscriptionOf] = {}
        for full_name, (subscription, circuit) in subscriptions.items():
            if (queue := self._own(subscription.queue)) is None:
                continue
            state = state_of(subscription, circuit, now)
            reason = ""
            if subscription.paused:
                reason = subscription.reason
            elif state != "active":
                reason = circuit.error
            name = self._call.caller.name_of(subscription.name)
            content = current[full_name] = SubscriptionOf(name, queue, state, reason)
            if self._subscriptions.get(full_name) != content:
                yield _event("subscription", content)
        for full_name in self._subscriptions.keys() - current.keys():
            name = self._subscriptions[full_name].subscription
            yield _event("gone", {"subscription": name})
        self._subscriptions = current

    async def _sample(self, queues: list[str], now: int) -> Sample:
        """Count queues, and find their workers."""
        registers = await self._call.registers()
        present = self._call.service.claimers.listed()
        steps = take_sample(queues, registers, now / 1000, now, self._own, present)
        return await arun_steps(steps, self._call.visit.execute)

    def _workers_content(self, sample: Sample) -> dict[str, Any]:
        """Return the workers, with the caller's names of queues."""
        workers = [
            Worker(
                worker.holder,
                self._of_caller(worker.held),
                worker.until,
                worker.silent,
                self._of_caller(worker.busy),
            )
            for worker in sample.workers.values()
        ]
        lateness, causes = self._of_caller(sample.lateness), self._of_caller(sample.causes)
        content = {"workers": workers, "lateness": lateness, "causes": causes}
        return content | {"partly": sample.partly}

    def _of_caller(self, by_queue: Mapping[str, T]) -> dict[str, T]:
        """Return the values of the caller's queues, by the caller's names."""
        own = self._call.caller.own
        return {name: value for queue, value in by_queue.items() if (name := own(queue))}

    def _own(self, queue: str) -> str | None:
        """Return the caller's name of a queue, `None` if the stream is not about it.

        Args:
            queue: the full name, with a space and an id if it is the end of a message.
        """
        full_name, space, id = queue.partition(" ")
        caller = self._call.caller
        if id and not (caller.may("read") or caller.may("consume")):  # it may learn of no ids
            return None
        name = caller.own(full_name)
        if name is None or not name.startswith(self._query.prefix):
            return None
        return f"{name}{space}{id}"

    async def _send(self, text: str) -> None:
        """Send events, if there are any."""
        if text:
            data = text.encode()
            self._call.visit.carried(len(data))
            await self._call.response.send_part(data)
            self._sent = asyncio.get_running_loop().time()


def _event(kind: str, data: Any) -> str:
    """Return a server-sent event."""
    return f"event: {kind}\ndata: {msgspec.json.encode(data).decode()}\n\n"
