"""The metrics of a server, and their export by OpenTelemetry."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress

from bide.clock import SYSTEM_CLOCK
from bide.lane.lane import Lane
from bide.model.commands import Queues
from bide.model.errors import StoreError
from bide.model.internal_queues import is_listed
from bide.model.replies import Counts, Names, expect
from bide.observing.exporting import exporting, for_threads
from bide.observing.families import CLAIMS, THREADS, Family, Metric, claim_metrics
from bide.observing.store_counts import counts_of
from bide.server.limits.usage import Usage
from bide.server.shared_state import ServerStats
from bide.targets.http.stats import PUSH, Known, push_metrics

QUOTAS = {
    field: (
        Family("sum", f"bide.quota.{name}.used", unit, f"{words}."),
        Family("gauge", f"bide.quota.{name}", unit, f"{words}, at most."),
    )
    for field, name, unit, words in (
        (
            "messages",
            "messages",
            "{message}",
            "Messages of the namespace, dead and kept ones included",
        ),
        ("stored_bytes", "bytes", "By", "Bytes of these messages"),
        ("queues", "queues", "{queue}", "Queues of the namespace"),
    )
}
"""By the field of `Usage`: the metric of what is used, and of the quota."""
REQUESTS = Family(
    "counter",
    "bide.http.requests",
    "{request}",
    "Requests answered, by operation and status.",
    "operation status",
)
SECONDS = Family(
    "counter",
    "bide.http.request",
    "s",
    "How long answering them took, waiting included.",
    "operation",
)
WAITING = Family("sum", "bide.http.claims_waiting", "{claim}", "Claims that wait for a message.")
PROCESSES = Family("sum", "bide.http.processes", "{process}", "Processes of the server.")
SERVER = (*CLAIMS, *PUSH, REQUESTS, SECONDS, WAITING, PROCESSES, THREADS)
"""The families of the processes of a server."""


def usage_metrics(usage: Usage) -> Iterator[Metric]:
    """Yield the figures of quotas."""
    for field, (used_family, quota_family) in QUOTAS.items():
        yield used_family.of({"": getattr(usage, field)})
        if (most := getattr(usage, f"max_{field}")) is not None:
            yield quota_family.of({"": most})


def request_metrics(stats: ServerStats) -> Iterator[Metric]:
    """Yield the figures of requests, and of the processes that answer them."""
    requests: dict[str, dict[str, int]] = {}
    for (operation, status), count in sorted(stats.requests.items()):
        requests.setdefault(operation, {})[str(status)] = count
    yield REQUESTS.of(requests)
    yield SECONDS.of(dict(sorted(stats.seconds.items())))
    yield WAITING.of({"": stats.waiting})
    yield PROCESSES.of({"": stats.processes})
    yield THREADS.of(stats.threads)


@asynccontextmanager
async def exporting_server(
    lane: Lane,
    stats: Callable[[], ServerStats],
    known: Callable[[], Awaitable[Mapping[str, Known]]],
) -> AsyncIterator[None]:
    """Export the metrics of a server during the block, if the program has a provider of meters.

    They are those of the whole store. Quotas belong to the namespace of a token, so they are left
    out.

    Args:
        lane: the lane to the store.
        stats: returns what the processes of the server have done.
        known: returns the subscriptions of the store.
    """

    def counts() -> Mapping[str, Counts]:
        names = expect(Names, lane.call(Queues(""))).names
        return counts_of(lane, filter(is_listed, names))

    async def gathered() -> list[Metric]:
        subscriptions: Mapping[str, Known] = {}
        with suppress(StoreError):  # the metrics of the store say that it is away
            subscriptions = await known()
        figures, now = stats(), SYSTEM_CLOCK.now()
        return [
            *claim_metrics(figures.tallies),
            *push_metrics(subscriptions, figures.sent, now),
            *request_metrics(figures),
        ]

    async with exporting(counts, SERVER, for_threads(gathered), lambda: stats().lost):
        yield
