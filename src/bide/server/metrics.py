"""What Prometheus reads of the server: the queues, as a worker tells of them, and its requests."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from bide.model.commands import Count
from bide.model.errors import StoreError
from bide.model.replies import Counts
from bide.observing.metrics import claim_metrics, registry_of
from bide.server.access import Caller
from bide.server.figures import Figures
from bide.server.quotas import Usage
from bide.server.service import Service
from bide.targets.http.metrics import push_metrics
from bide.targets.http.survey import Known

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["KIND", "exposition"]

KIND = "text/plain; version=0.0.4; charset=utf-8"


async def exposition(service: Service, caller: Caller) -> bytes:
    """Return the figures of a caller's queues, and of all processes of the server together.

    Raises:
        InvalidArgument: prometheus_client is not installed.
    """
    counts: dict[str, Counts] | StoreError
    used: Usage | None = None
    try:
        names = await service.names(caller)
        asked = [service.ask(Counts, Count(caller.full(name))) for name in names]
        counts = dict(zip(names, await asyncio.gather(*asked), strict=True))
        used = await service.quotas.usage(caller)
    except StoreError as error:
        counts = error
    registry = registry_of(lambda: _or_raise(counts), now=lambda: service.clock.now() / 1000)
    from prometheus_client import generate_latest

    try:
        known = await service.pushing.known()
    except StoreError:
        known = {}  # that the store is away is told already
    figures = service.board.together(service.figures)
    registry.register(_ServerCollector(figures, known, caller, service.clock.now()))
    if used is not None:
        registry.register(_UsageCollector(used))
    return generate_latest(registry)


def _or_raise(counts: dict[str, Counts] | StoreError) -> Mapping[str, Counts]:
    if isinstance(counts, StoreError):
        raise counts
    return counts


class _UsageCollector:
    """Tells how much of its quota of messages the caller's namespace uses."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def describe(self) -> "list[Metric]":
        """Promise nothing."""
        return []

    def collect(self) -> "Iterator[Metric]":
        """Yield the figures; without a quota there is no limit."""
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "bide_quota_messages_used", "Messages of the namespace, dead and kept ones included.",
            value=self._usage.messages,
        )  # fmt: skip
        if self._usage.max_messages is not None:
            yield GaugeMetricFamily(
                "bide_quota_messages", "Messages that the namespace may have.",
                value=self._usage.max_messages,
            )  # fmt: skip


class _ServerCollector:
    """Tells what the server has answered, handed out and pushed."""

    def __init__(
        self, figures: Figures, known: Mapping[str, Known], caller: Caller, now: int
    ) -> None:
        self._figures = figures
        self._known = known
        self._caller = caller
        self._now = now

    def describe(self) -> "list[Metric]":
        """Promise nothing."""
        return []

    def collect(self) -> "Iterator[Metric]":
        """Yield what was done so far."""
        figures, own, home = self._figures, self._caller.own, self._caller.namespace
        tallies = {
            name: tally
            for queue, tally in figures.tallies.items()
            if (name := own(queue)) is not None
        }
        yield from claim_metrics(tallies)
        known = {
            name: one
            for one in self._known.values()
            if (name := one.subscription.known_as(home)) is not None
        }
        yield from push_metrics(known, figures.sent, self._now)
        if home is None:  # what others ask for is no business of a namespace
            yield from self._requests()

    def _requests(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._figures
        requests = CounterMetricFamily(
            "bide_http_requests", "Requests answered, by operation and status.",
            labels=["operation", "status"],
        )  # fmt: skip
        for (operation, status), count in sorted(figures.requests.items()):
            requests.add_metric([operation, str(status)], count)
        seconds = CounterMetricFamily(
            "bide_http_request_seconds", "How long answering them took, waiting included.",
            labels=["operation"],
        )  # fmt: skip
        for operation, took in sorted(figures.seconds.items()):
            seconds.add_metric([operation], took)
        yield from (requests, seconds)
        yield GaugeMetricFamily(
            "bide_http_claims_waiting", "Claims that wait for a message.", value=figures.waiting
        )
        yield GaugeMetricFamily(
            "bide_http_processes", "Processes of the server.", value=figures.processes
        )
