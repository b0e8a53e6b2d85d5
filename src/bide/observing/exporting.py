"""Export metrics by OpenTelemetry, if the program has a provider of meters."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bide.model.replies import Counts
from bide.observing.families import Family, Metric

API = "opentelemetry.metrics"
"""Until this module is loaded, no provider can be set."""


def is_metered() -> bool:
    """Tell whether the program has set a provider of meters."""
    api: Any = sys.modules.get(API)
    # Those of the API itself do nothing; one of them stands in until the program sets another.
    return api is not None and not type(api.get_meter_provider()).__module__.startswith(API)


@asynccontextmanager
async def exporting(
    counts: Callable[[], Mapping[str, Counts]],
    families: Iterable[Family],
    more: Callable[[], Iterable[Metric]],
) -> AsyncIterator[None]:
    """Export metrics during the block, if the program has set a provider before.

    Args:
        counts: reads the queues.
        families: which other metrics there may be.
        more: returns these metrics. All are read in a thread of the library.
    """
    if not is_metered():
        yield
        return
    from bide.observing.instruments import MetricsExport  # here: the package may be missing

    export = MetricsExport(counts, families=families, more=more)
    await asyncio.to_thread(export.open)  # it may wait for a collection, which reads the store
    try:
        yield
    finally:
        await asyncio.to_thread(export.close)
