"""What Prometheus reads of the server: the queues, as a worker tells of them, and its requests."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from bide.model.commands import Count
from bide.model.errors import StoreError
from bide.model.replies import Counts
from bide.observing.metrics import Family, claim_metrics, registry_of
from bide.server.quotas import Usage
from bide.server.rights import Caller
from bide.server.service import Service
from bide.server.shared_stats import ServerStats
from bide.targets.http.stats import Known, push_metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

KIND = "text/plain; version=0.0.4; charset=utf-8"

QUOTAS = {
    field: (
        Family("gauge", f"bide_quota_{name}_used", f"{words}."),
        Family("gauge", f"bide_quota_{name}", f"{words}, at most."),
    )
    for field, name, words in (
        ("messages", "messages", "Messages of the namespace, dead and kept ones included"),
        ("stored_bytes", "bytes", "Bytes of these messages"),
        ("queues", "queues", "Queues of the namespace"),
    )
}
"""By the field of `Usage`: what is used, and what may be."""
REQUESTS = Family(
    "counter", "bide_http_requests", "Requests answered, by operation and status.",
    "operation status",
)  # fmt: skip
SECONDS = Family(
    "counter", "bide_http_request_seconds", "How long answering them took, waiting included.",
    "operation",
)  # fmt: skip
WAITING = Family("gauge", "bide_http_claims_waiting", "Claims that wait for a message.")
PROCESSES = Family("gauge", "bide_http_processes", "Processes of the server.")


async def exposition(service: Service, caller: Caller) -> bytes:
    """Return the figures of a caller's queues, and of all processes of the server together.

    Raises:
        InvalidArgument: prometheus_client is not installed.
    """
    counts: dict[str, Counts] | StoreError
    used: Usage | None = None
    try:
        names = await service.names(caller)
        # Of this moment: a sum of another process may be younger than any that is kept here.
        counts = {name: await service.ask(Counts, Count(caller.full(name))) for name in names}
        used = await service.quotas.usage(caller)
    except StoreError as error:
        counts = error
    try:
        known = await service.pushing.known()
    except StoreError:
        known = {}  # that the store is away is told already
    stats = service.shared.stats.together(service.stats)
    found = [*_of_server(stats, known, caller, service.clock.now()), *_of_usage(used)]
    registry = registry_of(
        lambda: _or_raise(counts), more=lambda: found, now=lambda: service.clock.now() / 1000
    )
    from prometheus_client import generate_latest

    # In a thread: with hundreds of queues it takes longer than others are to wait.
    return await asyncio.to_thread(generate_latest, registry)


def _or_raise(counts: dict[str, Counts] | StoreError) -> Mapping[str, Counts]:
    if isinstance(counts, StoreError):
        raise counts
    return counts


def _of_usage(usage: Usage | None) -> "Iterator[Metric]":
    """Yield how much of its quotas the caller's namespace uses."""
    if usage is None:
        return
    for field, (of_use, of_quota) in QUOTAS.items():
        yield of_use.of({"": getattr(usage, field)})
        if (most := getattr(usage, f"max_{field}")) is not None:
            yield of_quota.of({"": most})


def _of_server(
    stats: ServerStats, known: Mapping[str, Known], caller: Caller, now: int
) -> "Iterator[Metric]":
    """Yield what the server has answered, handed out and pushed."""
    own, home = caller.own, caller.namespace
    yield from claim_metrics(
        {name: tally for queue, tally in stats.tallies.items() if (name := own(queue)) is not None}
    )
    subscriptions = {
        name: one
        for one in known.values()
        if own(one.subscription.source) is not None
        and (name := one.subscription.known_as(home)) is not None
    }
    whole = home is None and caller.of_all_queues  # others must not see all requests and intakes
    sent = stats.sent if whole else msgspec.structs.replace(stats.sent, taken={})
    yield from push_metrics(subscriptions, sent, now)
    if whole:
        yield from _of_requests(stats)


def _of_requests(stats: ServerStats) -> "Iterator[Metric]":
    requests: dict[str, dict[str, int]] = {}
    for (operation, status), count in sorted(stats.requests.items()):
        requests.setdefault(operation, {})[str(status)] = count
    yield REQUESTS.of(requests)
    yield SECONDS.of(dict(sorted(stats.seconds.items())))
    yield WAITING.of({"": stats.waiting})
    yield PROCESSES.of({"": stats.processes})
