"""All queues: how many messages they have, what happens, and what falls due when."""

from typing import Any

from bide.dashboard.chart import SPANS, histogram, sparkline
from bide.dashboard.reading import Glance
from bide.dashboard.view import Page, View
from bide.observing.sample import main_cause, rates

DEFAULT_SPAN = "24h"

STATES = ("delayed", "ready", "leased", "dead")


async def overview(view: View) -> Page:
    """Return the first page."""
    request = view.request
    prefix, after = request.get("prefix"), request.get("after")
    glance = await view.store.glance(view.access, prefix, after)
    span = span_of(view)
    forecast = await view.store.forecast(glance.names, span.bucket, span.buckets)
    rows = [_row(glance, name, view.now) for name in glance.names]
    pace = [_pace(glance, number) for number in range(1, len(glance.samples))]
    return Page("overview.html", {
        "glance": glance, "rows": rows, "prefix": prefix, "span": span,
        "chart": histogram(forecast, span), "states": STATES,
        "sums": {state: sum(getattr(row["counts"].sizes, state) for row in rows)
                 for state in STATES},
        "late": max((row["late"] for row in rows if row["late"] is not None), default=None),
        "pace": {
            name: (pace[-1][number] if pace else None, sparkline([one[number] for one in pace]))
            for number, name in enumerate(("put", "done", "failed"))
        },
    })  # fmt: skip


def span_of(view: View) -> Any:
    """Return how far the forecast of a page looks ahead."""
    return SPANS.get(view.request.get("span")) or SPANS[DEFAULT_SPAN]


def _row(glance: Glance, name: str, now: int) -> dict[str, Any]:
    counts = glance.sample.queues[name]
    return {
        "name": name,
        "counts": counts,
        "late": None if counts.oldest is None else max(0, now - counts.oldest),
        "lateness": glance.sample.lateness.get(name),
        "cause": main_cause(glance.sample.causes.get(name)).partition(" ")[::2],
        "rates": rates(glance.before, glance.sample, name),
    }


def _pace(glance: Glance, number: int) -> tuple[float, float, float]:
    """Return what happened in all queues together before a sample, per second."""
    before, sample = glance.samples[number - 1], glance.samples[number]
    found = [one for name in glance.names if (one := rates(before, sample, name)) is not None]
    put, done, failed = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    return put, done, failed
