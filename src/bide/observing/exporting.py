"""Export metrics by OpenTelemetry, if the program has a provider of meters."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bide.engines import losses
from bide.logs import logger
from bide.model.replies import Counts
from bide.observing.families import Family, Metric

API = "opentelemetry.metrics"
"""Until this module is loaded, no provider can be set."""

PATIENCE = 5.0
"""Seconds for the event loop to answer a reader of metrics."""

_log = logger("bide.telemetry")


def is_metered() -> bool:
    """Tell whether the program has set a provider of meters."""
    api: Any = sys.modules.get(API)
    # Providers of the API itself do nothing; one stands in until the program sets another.
    return api is not None and not type(api.get_meter_provider()).__module__.startswith(API)


def for_threads(
    gather: Callable[[], Coroutine[Any, Any, list[Metric]]],
) -> Callable[[], list[Metric]]:
    """Return a function for readers, which have threads of their own.

    It returns the metrics of the last call if the loop is blocked, or if the loop itself reads, as
    by `force_flush`.

    Args:
        gather: returns metrics whose figures belong to the event loop that runs now.
    """
    loop = asyncio.get_running_loop()
    latest: list[Metric] = []

    def read() -> list[Metric]:
        nonlocal latest
        if asyncio._get_running_loop() is not loop:
            answer = asyncio.run_coroutine_threadsafe(gather(), loop)
            try:
                latest = answer.result(PATIENCE)
            except TimeoutError:
                answer.cancel()
                _log.warning("the event loop is blocked: the metrics are those of the last reading")
        return latest

    return read


@asynccontextmanager
async def exporting(
    counts: Callable[[], Mapping[str, Counts]],
    families: Iterable[Family],
    more: Callable[[], Iterable[Metric]],
    lost: Callable[[], Mapping[str, int]] = losses.counted,
) -> AsyncIterator[None]:
    """Export metrics during the block, if the program has set a provider before.

    Args:
        counts: reads the queues.
        families: which other metrics there may be.
        more: returns these metrics. All are read in a thread of the library.
        lost: returns the number of lost changes by queue; by default those that this process has
            seen.
    """
    if not is_metered():
        yield
        return
    from bide.observing.instruments import MetricsExport  # here: the package may be missing

    export = MetricsExport(counts, families=families, more=more, lost=lost)
    await asyncio.to_thread(export.open)  # it may wait for a collection, which reads the store
    try:
        yield
    finally:
        await asyncio.to_thread(export.close)
