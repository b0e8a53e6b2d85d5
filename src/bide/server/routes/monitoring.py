"""Workers, health, metrics and usage."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from bide.lane.steps import arun_steps
from bide.model.commands import Count
from bide.model.errors import AccessDenied, StoreError, StoreUnavailable
from bide.model.identity import check_name
from bide.model.replies import Counts, expect
from bide.observing.families import Metric, claim_metrics
from bide.observing.workers import Workers, list_workers, request_stop
from bide.server import wire
from bide.server.access.rights import Caller
from bide.server.call import ApiCall
from bide.server.limits.usage import Usage
from bide.server.metrics import request_metrics, usage_metrics
from bide.server.operation import Answer, Routes
from bide.server.problem import Problem
from bide.server.shared_state import ServerStats
from bide.targets.http.stats import Known, push_metrics

workers = Routes("workers")
route = Routes("service")

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class Requested(msgspec.Struct):
    """A worker process that is to be replaced."""

    holder: str


class Health(msgspec.Struct, omit_defaults=True):
    """The health of the service."""

    status: str
    reason: str | None = None
    """Why it is not ready."""
    degraded: str | None = None
    """What is slower than usual although it is ready."""
    thread_restarts: dict[str, int] = {}
    """How often threads and tasks of the process that answers died and were restarted, by name."""


@workers("listWorkers", "GET", "/v1/workers", "read")
async def workers_of(call: ApiCall) -> Workers:
    """List worker processes.

    Those that serve queues of the token, with the messages that they handle.
    """
    now = call.service.clock.now()
    steps = list_workers(await call.registers(), now, call.caller.own)
    return await arun_steps(steps, call.visit.execute)


@workers(
    "stopWorker",
    "POST",
    "/v1/workers/{holder}/stop",
    "admin",
    {202: Requested},
    problems=(404, 409),
)
async def stop(call: ApiCall, content: wire.EmptyRequest) -> Answer:
    """Replace a worker process.

    Its supervisor looks every five seconds, starts a new process, and asks the old one to end;
    it is killed if it does not. A request that no supervisor finds within a minute expires.
    """
    if not call.caller.of_all_queues:
        raise AccessDenied("a process may serve any queue: this needs a token for all queues")
    holder = check_name(call.request.part("holder"), "holder")
    workers = [worker for worker in (await workers_of(call)).workers if worker.holder == holder]
    if not workers:
        raise Problem("not-found", f"no running worker is named {holder!r}")
    stops = [worker.stops for worker in workers if worker.stops is not None]
    if not stops:
        raise Problem("conflict", f"{holder} has no supervisor that you may ask to replace it")
    for queue in stops:
        await call.visit.execute(request_stop(call.caller.full(queue), holder, call.actor))
    return Answer(202, Requested(holder))


@route("healthz", "GET", "/healthz", None)
async def healthz(call: ApiCall) -> Health:
    """Check whether the process answers."""
    return Health("ok")


@route("readyz", "GET", "/readyz", None, {200: Health, 503: Health})
async def readyz(call: ApiCall) -> Answer:
    """Check whether the store answers as well.

    `degraded` says that waiting claims are not notified of messages of other processes, and poll
    the store instead. `thread_restarts` counts threads and tasks that died and were restarted.
    """
    service = call.service
    reason = await service.ready()
    status = "ready" if reason is None else "not ready"
    health = Health(status, reason, service.degraded, service.thread_restarts)
    return Answer(200 if reason is None else 503, health)


async def store_is_down(call: ApiCall) -> Answer:
    """Answer a scrape whose token the store does not look up: `/readyz` tells anybody as much."""

    def counts() -> NoReturn:
        raise StoreUnavailable("it does not answer whose token this is")

    return Answer(200, await _written(counts), content_type=EXPOSITION)


@route(
    "metrics",
    "GET",
    "/metrics",
    "read",
    {200: bytes},
    content_type=EXPOSITION,
    without_store=store_is_down,
)
async def metrics(call: ApiCall) -> Answer:
    """Get metrics for Prometheus.

    Those of the token's namespace, from all processes of the server together.
    """
    with call.visit.slowly():
        async with call.service.scrapes.turn():
            return Answer(200, await _exposition(call), content_type=EXPOSITION)


@route("usage", "GET", "/v1/usage", "read")
async def usage(call: ApiCall) -> Usage:
    """Show how much the namespace uses of its quotas."""
    with call.visit.slowly():
        return await call.service.quotas.usage(call.caller)


async def _exposition(call: ApiCall) -> bytes:
    """Return the metrics of a caller's queues, and of all processes of the server together.

    Raises:
        InvalidArgument: prometheus_client is not installed.
    """
    service, caller = call.service, call.caller
    failure: StoreError | None = None
    counts: dict[str, Counts] = {}
    usage: list[Metric] = []
    all_subscriptions: Mapping[str, Known] = {}
    try:
        names = await call.names()
        # Read now: sums of other processes may be newer than cached counts.
        for name in names:
            reply = await call.visit.execute(Count(caller.full(name)))
            counts[name] = expect(Counts, reply)
        usage += usage_metrics(await service.quotas.usage(caller))
    except StoreError as error:
        failure = error
    with suppress(StoreError):  # a process that pushes knows them without the store
        all_subscriptions = await service.pushing.known()

    def read_counts() -> Mapping[str, Counts]:
        if failure is not None:  # then the registry says that the store is down
            raise failure
        return counts

    now = service.clock.now()
    stats = seen_by(caller, service.shared.stats.together(service.stats))
    subscriptions = {
        caller.name_of(name): known
        for name, known in all_subscriptions.items()
        if caller.own(known.subscription.queue) is not None
    }
    metrics = [
        *usage,
        *claim_metrics(stats.tallies),
        *push_metrics(subscriptions, stats.sent, now),
        *(request_metrics(stats) if _sees_all(caller) else ()),
    ]
    return await _written(
        read_counts, more=lambda: metrics, now=lambda: now / 1000, lost=lambda: stats.lost
    )


async def _written(counts: Callable[[], Mapping[str, Counts]], **more: Any) -> bytes:
    """Return the metrics of a registry as text; for the arguments see `registry_of`.

    Raises:
        InvalidArgument: prometheus_client is not installed.
    """
    from bide.observing.metrics import registry_of  # here: the package may be missing

    registry = registry_of(counts, **more)
    from prometheus_client import generate_latest

    # In a thread: with hundreds of queues it would delay other requests too long.
    return await asyncio.to_thread(generate_latest, registry)


def _sees_all(caller: Caller) -> bool:
    """Tell whether a caller sees the requests of all callers, and what belongs to the operator."""
    return caller.namespace is None and caller.of_all_queues


def seen_by(caller: Caller, stats: ServerStats) -> ServerStats:
    """Return the figures of queues and pushes that a caller may see, by the caller's names."""
    own = caller.own
    tallies = {
        name: tally for queue, tally in stats.tallies.items() if (name := own(queue)) is not None
    }
    lost = {name: count for queue, count in stats.lost.items() if (name := own(queue)) is not None}
    # What is taken in from RabbitMQ is counted by exchange, which belongs to no namespace.
    sent = stats.sent if _sees_all(caller) else msgspec.structs.replace(stats.sent, taken={})
    return msgspec.structs.replace(stats, tallies=tallies, sent=sent, lost=lost)
