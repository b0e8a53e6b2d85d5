"""What `bide top` draws on a terminal."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bide.cli.output import (
    NAME,
    STYLES,
    TEXT,
    Cell,
    Column,
    Output,
    escape,
    plural,
    table_of,
    text_of,
)
from bide.cli.queue_output import MUCH_LATENESS, quantile_cell, size_cells
from bide.cli.queues.top_view import BUCKET, BUCKETS, Ahead, TopView, late_by
from bide.cli.times import rounded
from bide.model.errors import StoreError
from bide.model.replies import SIZES, Counts
from bide.model.times import limits_text
from bide.observing.sample import Lateness, Rates, Sample, Worker, main_cause, rates

LATENESS_COLUMNS, RATES_COLUMNS = ("late by", "p50", "p99"), ("put/s", "done/s", "failed/s")

QUEUES = (
    Column("queue", least=NAME),
    *[
        Column(number, right=True, extra=True)
        for number in (*SIZES, *LATENESS_COLUMNS, *RATES_COLUMNS)
    ],
    Column("because", extra=True),
    Column("", least=len("paused")),
)

WORKERS = (
    Column("worker", least=NAME),
    Column("holds", right=True),
    Column("first lease ends", right=True, extra=True),
    Column("longest", right=True, extra=True),
    Column("of", least=TEXT),
)

OTHER_LINES, MORE_LINES_IF_NARROW = 14, 6
"""Lines of a screen beside those of queues and workers; how many more if both are narrow."""

NARROW_WIDTH = 70
"""Columns: on a narrower terminal, the names of the columns that have no room take lines."""

LONG_DELIVERY = 600_000
"""Milliseconds of a delivery that is shown in red."""

QUANTILES_NOTE = "p50, p99: how late deliveries of the last minute began, at most"

_BLOCKS = "▁▂▃▄▅▆▇█"


def picture(
    view: TopView, store: str, width: int, lines: int = sys.maxsize, prefix: str = ""
) -> RenderableType:
    """Return what is on the screen.

    Args:
        view: what to show.
        store: its URL without a password.
        width: how many columns the terminal has.
        lines: how many lines it has.
        prefix: the beginning of the names of the queues that are shown.
    """
    sample, workers = view.sample, view.workers
    if not sample.queues and not workers:
        nothing = f"no queue begins with {prefix!r}" if prefix else "no queues"
        return text_of((f"{nothing} in {store} yet", "dim"))
    if width < NARROW_WIDTH and workers:
        lines -= MORE_LINES_IF_NARROW
    # Workers get a quarter of the lines at most, and one that says how many more there are.
    most_workers = max(1, lines // 4)
    most_queues = max(2, lines - OTHER_LINES - min(len(workers), most_workers + 1))
    parts: list[RenderableType] = [_headline(store, sample)]
    if view.ahead is not None:
        parts.append(_ahead(view.ahead))
    parts += ["", _queues(view, most_queues, width)]
    if workers:
        parts.append(_workers(view, most_workers, width))
    else:
        parts.append(text_of(("no worker is active", "dim")))
    if sample.lateness:
        parts.append(text_of((QUANTILES_NOTE, "dim")))
    return Group(*parts)


def _headline(store: str, sample: Sample) -> Text:
    """Return the counts of all queues and the store, as one line; its end is what may be cut."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for size in SIZES:
        count = sum(getattr(counts.sizes, size) for counts in sample.queues.values())
        line.append(f"{count:,} {size}   ", STYLES[size] if count else "dim")
    return line.append(f"at {store}", "bold")


def _ahead(ahead: Ahead) -> Text:
    """Return how many messages fall due in each hour, as one line; its end is what may be cut."""
    line = Text(f"due in {BUCKETS}h  ", no_wrap=True, overflow="ellipsis")
    forecast = ahead.forecast
    total, most = sum(forecast.buckets), max(forecast.buckets)
    line.append(sparkline(forecast.buckets), STYLES["delayed"])
    line.append(f"  {total:,}", "bold" if total else "dim")
    if most:  # the hour in which most messages fall due
        start = forecast.start + forecast.buckets.index(most) * BUCKET
        span = "-".join(
            datetime.fromtimestamp(moment / 1000).astimezone().strftime("%H:%M")
            for moment in (start, start + BUCKET)
        )
        line.append(f", all {span}" if most == total else f", most {span}: {most:,}")
    if forecast.later:
        line.append(f"; later {forecast.later:,}", "dim")
    if ahead.left_out:
        line.append(f"; without {plural(ahead.left_out, 'queue')}", "dim")
    return line


def _queues(view: TopView, most: int, width: int) -> Table:
    """Return the table of queues, with `most` lines at most."""
    sample = view.sample
    rates_by_name = {name: rates(view.before, sample, name) for name in sample.queues}
    names = sorted(sample.queues)
    if len(names) > most:  # those that are late or busy stay, in the order of their names

        def importance(name: str) -> tuple[float, float]:
            rate = rates_by_name[name] or Rates(0, 0, 0)
            return late_by(sample.queues[name].oldest, view.now), rate.put + rate.done

        names = sorted(sorted(names, key=importance, reverse=True)[: most - 1])
    rows = [
        _queue_row(name, sample.queues[name], rates_by_name[name], sample, view.now)
        for name in names
    ]
    if len(names) < len(sample.queues):
        rows.append(_more_rows(len(sample.queues) - len(names), QUEUES))
    return table_of(QUEUES, rows, width)


def _queue_row(
    name: str, counts: Counts, rate: Rates | None, sample: Sample, now: int
) -> list[Cell]:
    late = late_by(counts.oldest, now)
    late_cell: Cell = ("-", "dim")
    if late:
        late_cell = rounded(late), "red" if late >= MUCH_LATENESS else ""
    rate_cells: list[Cell] = ["", "", ""]
    if rate:
        rate_cells = [_rate(rate.put), _rate(rate.done), _rate(rate.failed, "red")]
    return [
        (name, "bold"),
        *size_cells(counts),
        late_cell,
        *_quantiles(sample.lateness.get(name)),
        *rate_cells,
        (main_cause(sample.causes.get(name)), "dim"),
        ("paused", "yellow") if counts.paused else (limits_text(counts), "dim"),
    ]


def _workers(view: TopView, most: int, width: int) -> Table:
    """Return the table of workers, `most` of them."""
    sample, now = view.sample, view.now
    rows: list[list[Cell]] = []
    for worker in view.workers[:most]:
        # Of a large queue, a sample has only the first leases.
        count = "1,000+" if sample.partly and worker.holds >= 1_000 else f"{worker.holds:,}"
        queues = ", ".join(f"{queue} {number:,}" for queue, number in sorted(worker.held.items()))
        lease_end: Cell = ""
        text: Cell = (queues, "dim")
        if worker.silent is not None:
            lease_end, text = ("silent", "red"), f"for {rounded(worker.silent)}: dead, or hangs"
        elif worker.until is not None:
            remaining = worker.until - now
            lease_end = f"in {rounded(remaining)}" if remaining > 0 else ("over", "red")
            text = queues
        elif not worker.held:
            text = f"seen {rounded((sample.moment - worker.seen) * 1000)} ago", "dim"
        holds = count, "yellow" if worker.holds else "dim"
        rows.append([worker.holder, holds, lease_end, _longest(worker, now), text])
    if len(view.workers) > most:
        rows.append(_more_rows(len(view.workers) - most, WORKERS))
    return table_of(WORKERS, rows, width)


def _longest(worker: Worker, now: int) -> Cell:
    """Return for how long the worker has handled the message that it handles for longest."""
    if worker.longest is None:
        return ""
    _queue, handled = worker.longest
    if handled.since is None:
        return ""
    duration = max(0, now - handled.since)
    return rounded(duration), "red" if duration >= LONG_DELIVERY else ""


def _more_rows(count: int, columns: Sequence[Column]) -> list[Cell]:
    """Return the last row of a table that has no room for `count` rows."""
    return [(f"and {count:,} more", "dim"), *[""] * (len(columns) - 1)]


def _quantiles(lateness: Lateness | None) -> list[Cell]:
    """Return the cells of the median and the 99th percentile; `None`: nothing was delivered."""
    if lateness is None:
        return ["", ""]
    return [quantile_cell(lateness.p50), quantile_cell(lateness.p99)]


def _rate(value: float, style: str = "") -> Cell:
    """Return a rate per second, rounded for people."""
    text = f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"
    return text, style if value else "dim"


def sparkline(counts: Sequence[int]) -> str:
    """Return counts as a line of blocks; any count above 0 is visible.

    Example:
        >>> sparkline([0, 1, 500, 1000])
        '·▁▄█'
    """
    most = max(counts, default=0)
    return "".join(
        _BLOCKS[max(1, round(count / most * len(_BLOCKS))) - 1] if count else "·"
        for count in counts
    )


def watch(
    out: Output, view: TopView, views: Iterable[TopView | StoreError], store: str, prefix: str
) -> None:
    """Draw each view over the one before; if the store is away, say so above the last one."""

    def image_of(latest: TopView | StoreError) -> Any:
        nonlocal view
        if isinstance(latest, TopView):
            view = latest
        width, height = out.console.size
        image = picture(view, store, width, height - 1, prefix)
        if isinstance(latest, TopView):
            return image
        return Group(Text(escape(f"the store is away: {latest}"), "bold red"), image)

    with Live(image_of(view), console=out.console, screen=True, auto_refresh=False) as live:
        for latest in views:
            live.update(image_of(latest), refresh=True)
