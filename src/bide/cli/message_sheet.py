"""All fields of one message, for people, and why it is where it is."""

from bide.cli import output
from bide.cli.message_output import attempts_of, body_line, seen_version
from bide.cli.output import STYLES, Cell, Output
from bide.cli.rules import is_held, window_in_words, words_of
from bide.cli.times import local, relative, span
from bide.model.message import Message, Progress
from bide.model.options import options_of
from bide.observing.explanation import Explanation

BAR_WIDTH = 20
"""The width of a bar, in characters."""


def _progress(progress: Progress) -> Cell:
    """Return the report of a worker, with a bar if it says how much there is to do."""
    report: Cell = [str(progress), (f"  {relative(progress.moment)}", "dim")]
    if progress.percent is None:
        return report
    done_width = BAR_WIDTH * progress.percent // 100
    return [("━" * done_width, "green"), ("━" * (BAR_WIDTH - done_width), "dim"), " ", *report]


def _stopping(message: Message) -> str:
    """Return who has asked the holder of a message to stop."""
    by = f" by {message.stopping}" if message.stopping else ""
    return f"cancelled{by}; {message.holder} was asked to stop"


def _runs(message: Message, explanation: Explanation | None) -> list[tuple[str, Cell | None]]:
    """Return the lines about rule and runs of a message."""
    run = None if explanation is None else explanation.run
    date = message.local_date
    lines: list[tuple[str, Cell | None]] = [
        ("date", None if date is None else str(date)),
        ("repeats", words_of(message) or None),
    ]
    if run is None or run.status == "unread":
        return lines
    if run.status != "held":
        lines.append(("run of", [local(run.at), (f"  {relative(run.at)}", "dim")]))
    if run.next is not None:
        lines.append(("next run", [local(run.next), (f"  {relative(run.next)}", "dim")]))
    elif run.is_last:
        lines.append(("next run", "none: this run is the last one"))
    if run.left is not None:
        lines.append(("runs left", f"{run.left:,}"))
    if run.is_held:
        lines.append(("held", ("until it is resumed", "yellow")))
    return lines


def print_sheet(out: Output, message: Message, explanation: Explanation | None = None) -> None:
    """Print all fields of one message for people, and why it is where it is."""

    def moment(ms: int | None) -> Cell | None:
        return None if ms is None else [local(ms), (f"  {relative(ms)}", "dim")]

    due, expires, successor = message.due, message.expires, message.successor
    options = options_of(message)
    del options["attempts"]
    sheet: list[tuple[str, Cell | None]] = [
        ("id", (message.id, "bold")),
        ("state", (message.state, STYLES[message.state])),
        ("why", None if explanation is None else explanation.sentence),
        ("created", moment(message.created)),
        ("due", None if is_held(message) else moment(due)),
        *_runs(message, explanation),
        ("window", window_in_words(message) or None),
        ("expires", None if expires is None else moment(due + expires)),
        ("attempt", attempts_of(message, " of ")),
        *((name, None if value is None else str(value)) for name, value in options.items()),
        ("version", seen_version(message)),
        ("held by", message.holder),
        ("held until", moment(message.until)),
        ("stopping", None if message.stopping is None else (_stopping(message), "yellow")),
        ("progress", None if message.progress is None else _progress(message.progress)),
        ("then due", None if successor is None else moment(successor.due(0))),
        (f"{message.state} since", moment(message.ended)),
        *(("header", f"{name}: {text}") for name, text in (message.headers or {}).items()),
    ]
    for failure in message.failures:
        duration = span(failure.started, failure.moment)
        heading = f"attempt {failure.attempt}, {duration}, {failure.holder}: "
        reason = "\n".join(failure.reason.splitlines())
        sheet.append(("failed", [(heading, "dim"), (reason, "red")]))
    sheet.append(("body", body_line(message)))
    shown = [[(name, "dim"), cell] for name, cell in sheet if cell is not None]
    out.console.print(output.grid(shown, "rl"))
