"""`bide forecast`: a bar chart of due times."""

from datetime import datetime

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Output, chart, plural
from bide.cli.store import CommandStore
from bide.cli.times import iso, now_ms, relative


@on_store(option.queue, option.time("--bucket", "The time span of a bar.", "1m"))
@option.time("--horizon", "How far into the future.", "1h")
@option.flag("--repeats", help="Count all runs of messages that repeat, not the next ones only.")
def forecast(
    store: CommandStore, out: Output, queue: str, bucket: float, horizon: float, repeats: bool
) -> None:
    """Chart how many messages fall due over time.

    In a pipe, each line is: the start of the span, the number of messages due in it. The first line
    is "overdue" and their number, the last line "later" and the number due after the horizon.

    \b
    Example:
      bide forecast orders --bucket 10m --horizon 6h
    """
    forecast = store.existing(queue).forecast(bucket, horizon, repeats=repeats)
    spans = [(round(moment.timestamp() * 1000), count) for moment, count in forecast]
    if not out.terminal:
        out.line({"overdue": forecast.overdue}, "overdue", forecast.overdue)
        for start, count in spans:
            out.line({"start": start, "count": count}, iso(start), count)
        out.line({"later": forecast.later}, "later", forecast.later)
        return
    noun, verb = "run" if repeats else "message", "waits" if forecast.total == 1 else "wait"
    out.text((queue, "bold"), (f"  {plural(forecast.total, noun)} {verb}", "dim"))
    now, time_format = now_ms(), "%H:%M:%S" if forecast.bucket < 60 else "%d %b %H:%M"
    rows = [("due by now", "", forecast.overdue, "green")]
    for start, count in spans:
        if count:
            label = datetime.fromtimestamp(start / 1000).astimezone().strftime(time_format)
            rows.append((label, relative(max(start, now), now), count, "cyan"))
    out.console.print(chart([*rows, ("later", "", forecast.later, "blue")]))
