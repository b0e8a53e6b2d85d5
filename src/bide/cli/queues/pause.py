"""`bide pause`: stop claims from a queue, until it is resumed or for a while."""

import click

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.errors import usage_error
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.cli.times import read_duration, when


@on_any_store(option.queue)
@option.moment("--until", "When the pause ends by itself; written like --at of bide put.")
@click.option(
    "--for",
    "lasting",
    type=lambda text: read_duration(text, "for"),
    metavar="TIME",
    help="How long the pause lasts instead: 30s, 1h30m, or seconds.",
)
def pause(
    store: CommandStore, out: Output, queue: str, until: float | None, lasting: float | None
) -> None:
    """Stop claims from a queue, until it is resumed or the pause ends.

    This applies to every process. Puts continue. A queue that does not exist yet can be paused. A
    line on stderr says so: it may be a typo.

    \b
    Example:
      bide pause orders
      bide pause orders --for 30m
      bide pause orders --until '2026-12-01 09:00 Europe/Berlin'
    """
    if until is not None and lasting is not None:
        raise usage_error("give --until or --for, not both")
    with store.telling_new(queue):
        settings = store.queue(queue).pause(until=until, lasting=lasting)
    facts = {"queue": queue, "paused": settings.paused}
    if settings.paused_until is not None:
        facts["paused_until"] = settings.paused_until
        out.report(
            facts, ("⏸ ", "yellow"), f"{queue} is paused until {when(settings.paused_until)}"
        )
    elif settings.paused:
        out.report(facts, ("⏸ ", "yellow"), f"{queue} is paused")
    else:  # its end is past
        out.report(facts, ("▶ ", "green"), f"{queue} is not paused: that time is past")
