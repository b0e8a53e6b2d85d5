"""What Prometheus reads of the server: the queues, as a worker tells of them, and its requests."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from bide.model.commands import Count
from bide.model.errors import StoreError
from bide.model.replies import Counts
from bide.server.access import Caller
from bide.server.push.metrics import push_metrics
from bide.server.service import Service
from bide.telemetry.metrics import claim_metrics, registry_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["KIND", "exposition"]

KIND = "text/plain; version=0.0.4; charset=utf-8"


async def exposition(service: Service, caller: Caller) -> bytes:
    """Return the figures of a caller's queues, and of this process of the server.

    Raises:
        InvalidArgument: prometheus_client is not installed.
    """
    counts: dict[str, Counts] | StoreError
    try:
        names = await service.names(caller)
        asked = [service.ask(Counts, Count(caller.full(name))) for name in names]
        counts = dict(zip(names, await asyncio.gather(*asked), strict=True))
    except StoreError as error:
        counts = error
    registry = registry_of(lambda: _or_raise(counts), now=lambda: service.clock.now() / 1000)
    from prometheus_client import generate_latest

    registry.register(_ServerCollector(service, caller))
    return generate_latest(registry)


def _or_raise(counts: dict[str, Counts] | StoreError) -> Mapping[str, Counts]:
    if isinstance(counts, StoreError):
        raise counts
    return counts


class _ServerCollector:
    """Tells what this process has answered, and handed out."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller

    def describe(self) -> "list[Metric]":
        """Promise nothing."""
        return []

    def collect(self) -> "Iterator[Metric]":
        """Yield what was done so far."""
        own = self._caller.own
        tallies = {
            name: tally
            for queue, tally in self._service.tallies.items()
            if (name := own(queue)) is not None
        }
        process = str(os.getpid())
        yield from claim_metrics(tallies, {"process": process})
        home, service = self._caller.namespace, self._service
        outlets = {
            name: outlet
            for outlet in service.pushing.outlets.values()
            if (name := outlet.subscription.known_as(home)) is not None
        }
        yield from push_metrics(outlets, process, service.clock.now())
        if self._caller.namespace is None:  # what others ask for is no business of a namespace
            yield from self._requests()

    def _requests(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        service, process = self._service, str(os.getpid())
        requests = CounterMetricFamily(
            "bide_http_requests", "Requests answered, by operation and status.",
            labels=["process", "operation", "status"],
        )  # fmt: skip
        for (operation, status), count in sorted(service.requests.items()):
            requests.add_metric([process, operation, str(status)], count)
        seconds = CounterMetricFamily(
            "bide_http_request_seconds", "How long answering them took, waiting included.",
            labels=["process", "operation"],
        )  # fmt: skip
        for operation, took in sorted(service.seconds.items()):
            seconds.add_metric([process, operation], round(took, 6))
        waiting = GaugeMetricFamily(
            "bide_http_claims_waiting", "Claims that wait for a message.", labels=["process"]
        )
        waiting.add_metric([process], service.waiting)
        yield from (requests, seconds, waiting)
