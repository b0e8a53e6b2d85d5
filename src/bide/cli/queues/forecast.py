"""`bide forecast`: a bar chart of due times."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from bide.cli import option
from bide.cli.output import Output, plural
from bide.cli.store import Store, on_store
from bide.cli.times import iso, now_ms, relative
from bide.queue.results import Forecast

if TYPE_CHECKING:
    from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(count: int, most: int, width: int) -> str:
    """Return a bar of blocks, in steps of an eighth; any count above 0 is visible.

    Example:
        >>> bar(8, 8, 4), bar(3, 8, 4), bar(1, 1000, 4), bar(0, 8, 4)
        ('████', '█▌', '▏', '')
    """
    if not count:
        return ""
    eighths = max(1, round(count / most * width * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


@on_store(option.queue, option.time("--bucket", "The time span of a bar.", "1m"))
@option.time("--horizon", "How far into the future.", "1h")
def forecast(store: Store, out: Output, queue: str, bucket: float, horizon: float) -> None:
    """Chart how many messages fall due over time.

    In a pipe, each line is: the start of the span, the number of messages due in it. The first line
    is "overdue" and their number, the last line "later" and the number due after the horizon.

    \b
    Example:
      bide forecast orders --bucket 10m --horizon 6h
    """  # fmt: skip
    found = store.existing(queue).forecast(bucket, horizon)
    spans = [(round(moment.timestamp() * 1000), count) for moment, count in found]
    if out.terminal:
        _chart(out, queue, found, spans)
        return
    out.line({"overdue": found.overdue}, "overdue", found.overdue)
    for start, count in spans:
        out.line({"start": start, "count": count}, iso(start), count)
    out.line({"later": found.later}, "later", found.later)


def _chart(out: Output, queue: str, found: Forecast, spans: list[tuple[int, int]]) -> None:
    verb = "waits" if found.total == 1 else "wait"
    out.text((queue, "bold"), (f"  {plural(found.total, 'message')} {verb}", "dim"))
    most = max([found.overdue, *found.counts, found.later], default=0)
    if not most:
        return
    digits = len(f"{most:,}")
    width = max(4, out.console.width - 24 - digits)
    if found.overdue:
        out.console.print(_line("due by now", "", found.overdue, most, width, "green"))
    for label, away, count in _rows(spans, found.bucket):
        if count is None:
            out.console.print(f"{label:>12}", style="dim")
        else:
            out.console.print(_line(label, away, count, most, width, "cyan"))
    if found.later:
        out.console.print(_line("later", "", found.later, most, width, "blue"))


def _rows(spans: list[tuple[int, int]], bucket: float) -> Iterator[tuple[str, str, int | None]]:
    """Return label, distance and count of each bar; a run of empty spans is one row of dots."""
    now = now_ms()
    form = (
        "%H:%M:%S" if bucket < 60 else "%H:%M" if bucket * len(spans) <= 86_400 else "%d %b %H:%M"
    )
    form = "%d %b %Y" if bucket >= 86_400 else form
    empty: list[tuple[str, str, int | None]] = []
    for start, count in spans:
        label = datetime.fromtimestamp(start / 1000).astimezone().strftime(form)
        row = label, relative(start, now) if start > now else "now", count
        if count == 0:
            empty.append(row)
            continue
        yield from empty if len(empty) < 3 else [("⋮", "", None)]
        empty = []
        yield row


def _line(label: str, away: str, count: int, most: int, width: int, style: str) -> "Text":
    from rich.text import Text

    return Text.assemble(
        f"{label:>12}", (f" {away:<8} ", "dim"), (bar(count, most, width), style),
        (f" {count:,}" if count else "", "bold"), no_wrap=True,
    )  # fmt: skip
