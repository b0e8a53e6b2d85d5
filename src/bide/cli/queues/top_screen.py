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
from bide.cli.queue_output import size_cells
from bide.cli.queues.top_view import BUCKET, BUCKETS, Ahead, TopView, late_by
from bide.cli.times import rounded
from bide.model.errors import StoreError
from bide.model.replies import SIZES
from bide.model.times import limits_text
from bide.observing.sample import Lateness, Rates, Sample, Worker, main_cause, rates

LATENESS, RATES = ("late by", "p50", "p99"), ("put/s", "done/s", "failed/s")

QUEUES = (
    Column("queue", least=NAME),
    *[Column(number, right=True, extra=True) for number in (*SIZES, *LATENESS, *RATES)],
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

OTHERS, MORE = 14, 6
"""Lines of a screen beside those of queues and workers; how many more if both are narrow."""

NARROW = 70
"""Columns: on a narrower terminal, the names of the columns that have no room take lines."""

MUCH = 60_000
"""Milliseconds of lateness that are shown in red."""

LONG = 600_000
"""Milliseconds of a delivery that is shown in red."""

ABOUT = "p50, p99: how late deliveries of the last minute began, at most"

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
    sample, _, workers, _, ahead = view
    if not sample.queues and not workers:
        what = f"no queue begins with {prefix!r}" if prefix else "no queues"
        return text_of((f"{what} in {store} yet", "dim"))
    lines -= MORE * (width < NARROW and bool(workers))
    places = max(1, lines // 4)
    room = max(2, lines - OTHERS - min(len(workers), places + 1))
    parts: list[RenderableType] = [_headline(store, sample)]
    if ahead is not None:
        parts.append(_ahead(ahead))
    parts += ["", _queues(view, room, width)]
    if workers:
        parts.append(_workers(view, places, width))
    else:
        parts.append(text_of(("no worker is active", "dim")))
    if sample.lateness:
        parts.append(text_of((ABOUT, "dim")))
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
    if most:
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


def _queues(view: TopView, room: int, width: int) -> Table:
    sample, before, _, now, _ = view
    pace = {name: rates(before, sample, name) for name in sample.queues}
    names = sorted(sample.queues)
    if len(names) > room:  # what is late or busy first

        def weight(name: str) -> tuple[float, float]:
            rate = pace[name] or Rates(0, 0, 0)
            return -(late_by(sample.queues[name].oldest, now)), -(rate.put + rate.done)

        names = sorted(sorted(names, key=weight)[: room - 1])
    rows = []
    for name in names:
        counts, rate = sample.queues[name], pace[name]
        late = late_by(counts.oldest, now)
        rows.append(
            [
                (name, "bold"),
                *size_cells(counts),
                (rounded(late), "red" if late >= MUCH else "") if late else ("-", "dim"),
                *_quantiles(sample.lateness.get(name)),
                *(
                    [_pace(rate.put), _pace(rate.done), _pace(rate.failed, "red")]
                    if rate
                    else [""] * 3
                ),
                (main_cause(sample.causes.get(name)), "dim"),
                ("paused", "yellow") if counts.paused else (limits_text(counts), "dim"),
            ]
        )
    if len(names) < len(sample.queues):
        rows.append(_more(len(sample.queues) - len(names), QUEUES))
    return table_of(QUEUES, rows, width)


def _workers(view: TopView, places: int, width: int) -> Table:
    sample, _, workers, now, _ = view
    rows: list[list[Cell]] = []
    for worker in workers[:places]:
        count = "1,000+" if sample.partly and worker.holds >= 1_000 else f"{worker.holds:,}"
        of = ", ".join(f"{queue} {number:,}" for queue, number in sorted(worker.held.items()))
        ends: Cell = ""
        text: Cell = (of, "dim")
        if worker.silent is not None:
            ends, text = ("silent", "red"), f"for {rounded(worker.silent)}: dead, or hangs"
        elif worker.until is not None:
            remaining = worker.until - now
            ends, text = f"in {rounded(remaining)}" if remaining > 0 else ("over", "red"), of
        elif not worker.held:
            text = f"seen {rounded((sample.moment - worker.seen) * 1000)} ago", "dim"
        holds = count, "yellow" if worker.holds else "dim"
        rows.append([worker.holder, holds, ends, _longest(worker, now), text])
    if len(workers) > places:
        rows.append(_more(len(workers) - places, WORKERS))
    return table_of(WORKERS, rows, width)


def _longest(worker: Worker, now: int) -> Cell:
    """Return for how long the worker has handled the message that it handles for longest."""
    longest = worker.longest
    if longest is None or longest[1].since is None:
        return ""
    lasting = max(0, now - longest[1].since)
    return rounded(lasting), "red" if lasting >= LONG else ""


def _more(count: int, columns: Sequence[Column]) -> list[Cell]:
    return [(f"and {count:,} more", "dim"), *[""] * (len(columns) - 1)]


def _quantiles(late: Lateness | None) -> list[Cell]:
    if late is None:
        return ["", ""]
    return [
        ("over 30m" if at is None else _bound(at), "red" if at is None or at >= MUCH else "")
        for at in (late.p50, late.p99)
    ]


def _bound(ms: float) -> str:
    """Return the bound of a bucket, which is a round number.

    Example:
        >>> _bound(2.5), _bound(50.0), _bound(2_500.0), _bound(1_800_000.0)
        ('2.5ms', '50ms', '2.5s', '30m')
    """
    return f"{ms:g}ms" if ms < 1_000 else rounded(ms).replace(".0s", "s")


def _pace(value: float, style: str = "") -> Cell:
    """Return a rate, rounded for people."""
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

    def drawn(outcome: TopView | StoreError) -> Any:
        nonlocal view
        if isinstance(outcome, TopView):
            view = outcome
        width, height = out.console.size
        image = picture(view, store, width, height - 1, prefix)
        if isinstance(outcome, TopView):
            return image
        return Group(Text(escape(f"the store is away: {outcome}"), "bold red"), image)

    with Live(drawn(view), console=out.console, screen=True, auto_refresh=False) as live:
        for outcome in views:
            live.update(drawn(outcome), refresh=True)
