"""`bide top`: a live table of queues and workers."""

from typing import Any

import click

from bide.cli import option
from bide.cli.errors import raise_on_termination
from bide.cli.output import Output, escape, warn
from bide.cli.queues.top_polling import Poller, poller_of
from bide.cli.queues.top_screen import as_facts, picture, print_rows
from bide.cli.store import Store, on_store

SHORTEST = 0.1


@on_store(option.prefix, option.time("--interval", "How often to refresh.", "1s"))
@option.flag("--once", help="Print once and exit.")
def top(store: Store, out: Output, prefix: str, interval: float, once: bool) -> None:
    """Watch queues and workers, live.

    All queues of the store, or those whose names begin with PREFIX.

    Ctrl-C and SIGTERM end it. Without a terminal, or on one that cannot move the cursor, it prints
    once; with --json it prints one object per refresh.

    In a pipe, each line is: "queue", name, delayed, ready, leased, dead, seconds late, the counters
    of `bide counts`, and the median and the 99th percentile of the lateness of deliveries in the
    last minute, in seconds; or "worker", name, the number of messages that it holds, their queues;
    or, last, if messages are delayed, "forecast", the start of this hour, the number of messages
    that are due, of those that fall due in each of 24 hours from that start, and later.

    The forecast is that of all queues together: of the 100 with the most delayed messages, if there
    are more. It is read every five seconds at most. On a terminal its hours are in local time.

    With --url http://... it reads the event stream of the server, and waits while the server is
    down. The workers are those of `bide worker`, clients that claim over HTTP, and every other
    holder of messages.

    \b
    Example:
      bide top
      bide top shop- --interval 5s
      BIDE_TOKEN=... bide top --url http://127.0.0.1:8642
      bide top --once --json | jq '.queues[] | select(.late > 60)'
    """
    if interval < SHORTEST:
        raise click.BadParameter("must be 100ms or longer", param_hint="'--interval'")
    poller = poller_of(store, prefix, interval)
    try:
        with raise_on_termination(KeyboardInterrupt):
            poller.take_sample()
            if out.as_json:
                _print_objects(out, poller, once)
            elif not out.terminal:
                print_rows(out, poller.view)
            elif once or out.console.is_dumb_terminal:  # it cannot draw over what is there
                out.console.print(_drawn(poller, None, out.console.width), crop=False)
            else:
                _watch(out, poller)
    except KeyboardInterrupt:  # this is how users end it
        return


def _drawn(poller: Poller, lines: int | None, width: int) -> Any:
    return picture(poller.view, poller.store.shown, lines, width, poller.prefix)


def _print_objects(out: Output, poller: Poller, once: bool) -> None:
    while True:
        if poller.trouble is None:
            out.json(as_facts(poller.view))
            out.flush()
        if once:
            return
        before = poller.trouble
        poller.refresh()
        if poller.trouble is not None and not poller.waits:
            raise poller.trouble
        if poller.trouble is not None and before is None:
            warn(f"{poller.trouble}; waiting for it")


def _watch(out: Output, poller: Poller) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def drawn() -> Any:
        width, height = out.console.size
        image = _drawn(poller, height - 1, width)
        if poller.trouble is None:
            return image
        return Group(Text(escape(f"the store is away: {poller.trouble}"), "bold red"), image)

    with Live(drawn(), console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            poller.refresh()
            live.update(drawn(), refresh=True)
