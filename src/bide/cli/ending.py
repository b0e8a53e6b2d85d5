"""`bide history` and `bide result`: what a queue remembers of messages that have ended."""

from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.output import Output, Part, escape, warn
from bide.cli.store import Store, on_store
from bide.cli.times import iso, local, now_ms, span
from bide.model.ended import End
from bide.model.errors import NotAcked, NotEnded, NotRemembered

STYLES = {
    "acked": "green", "cancelled": "bright_black", "expired": "magenta", "dead": "red",
    "purged": "bright_black",
}  # fmt: skip


def end_json(end: End) -> dict[str, Any]:
    """Return an end for JSON. Times are Unix milliseconds."""
    found: dict[str, Any] = {name: getattr(end, name) for name in ("how", "moment", "by", "due")}
    found |= {"attempt": end.attempt, "attempts": end.attempts}
    if end.result:
        found["result"] = msgspec.Raw(end.result)
    return found


def end_line(end: End, now: int) -> list[Part]:
    """Return an end for people."""
    by = f" by {end.by}" if end.by else ""
    times = f", delivered {end.attempt} time{'s' * (end.attempt != 1)}"
    return [(end.how, STYLES[end.how]), f" {local(end.moment, now)}{by}{times}"]


@click.command()
@option.queue
@click.argument("id")
@on_store
def history(store: Store, out: Output, queue: str, id: str) -> bool:
    """Show how messages with an id have ended, the newest first.

    For as long as the queue remembers it: see `bide set --history`. In a pipe, each line is: how,
    when, by whom, attempts. The exit code is 1 if nothing is remembered.

    \b
    Example:
      bide history orders order-42
      bide history orders order-42 --json | jq .attempts
    """  # fmt: skip
    ends = store.existing(queue).history(id)
    now = now_ms()
    for end in ends:
        if out.as_json:
            out.json({"id": id, "queue": queue, **end_json(end)})
        elif out.terminal:
            out.text(*end_line(end, now))
            for attempt in end.attempts:
                lasted = span(attempt.start, attempt.end, now)
                told = f"  attempt {attempt.number}, {lasted}, {attempt.holder}: "
                out.text((told, "dim"), (attempt.error or attempt.outcome).splitlines()[0])
        else:
            out.row(end.how, iso(end.moment), end.by or "", end.attempt)
    if not ends:
        warn(f"nothing is remembered of {id} in {queue}; 'bide set {queue} --history 7d' remembers")
    return bool(ends)


@click.command()
@option.queue
@click.argument("id")
@option.time("--wait", "How long to wait for the end of the message; by default not at all.")
@on_store
def result(store: Store, out: Output, queue: str, id: str, wait: float | None) -> bool:
    """Print the result of a message: what its handler returned, as JSON.

    For as long as the queue remembers it: see `bide set --result-ttl`. The exit code is 1 if there
    is none: the message has not ended, it died, expired, was cancelled, or nothing is remembered.

    \b
    Example:
      bide result orders order-42 --wait 30s
    """  # fmt: skip
    try:
        value = store.existing(queue).result(id, wait=wait)
    except (NotEnded, NotAcked, NotRemembered) as error:
        warn(escape(str(error)))
        return False
    out.json(value)
    return True
