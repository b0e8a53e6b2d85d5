"""`bide top`: a live table of queues and workers."""

from typing import Any

import click

from bide.cli.exits import warn
from bide.cli.options import DURATION, on_store, prefix_argument
from bide.cli.output import Output
from bide.cli.signals import leaving
from bide.cli.store import Store
from bide.cli.top.looks import Looks, looks_at
from bide.cli.top.screen import as_facts, picture, print_rows

__all__ = ["top"]

SHORTEST = 0.1


@click.command()
@prefix_argument
@click.option(
    "--interval",
    type=DURATION,
    default="1s",
    show_default=True,
    metavar="TIME",
    help="How often to look.",
)
@click.option("--once", is_flag=True, help="Look once, and leave.")
@on_store
def top(store: Store, out: Output, prefix: str, interval: float, once: bool) -> None:
    """Watch queues and workers, live.

    All queues of the store, or those whose names begin with PREFIX.

    Ctrl-C and SIGTERM end it. Elsewhere than on a terminal it looks once; with --json it prints an
    object for each look.

    In a pipe a line is: "queue", name, delayed, ready, leased, dead, seconds late, the
    counters of `bide counts`, and by how many seconds half of the deliveries of the last minute
    were late at most, and 99 in 100; or "worker", name, how many it holds, of which queues.

    Of a server (--url http://...) it hears what changes, and waits for one that is away. Workers
    are those of `bide worker`, who claims by HTTP, and whoever else holds messages.

    \b
    Example:
      bide top
      bide top shop- --interval 5s
      BIDE_TOKEN=... bide top --url http://127.0.0.1:8642
      bide top --once --json | jq '.queues[] | select(.late > 60)'
    """
    if interval < SHORTEST:
        raise click.BadParameter("must be 100ms or longer", param_hint="'--interval'")
    looks = looks_at(store, prefix, interval)
    try:
        with leaving(KeyboardInterrupt):
            looks.look()
            if once or not (out.terminal or out.as_json):
                _show(out, looks)
            elif out.as_json:
                _print_all(out, looks)
            else:
                _watch(out, looks)
    except KeyboardInterrupt:  # the way to leave
        return
    finally:
        looks.close()


def _facts(looks: Looks) -> dict[str, Any]:
    return as_facts(looks.sample, looks.before, looks.workers.see(looks.sample), looks.now)


def _show(out: Output, looks: Looks) -> None:
    if out.as_json:
        out.json(_facts(looks))
        return
    if out.terminal:
        out.console.print(_drawn(looks, None, out.console.width), crop=False)
    else:
        print_rows(out, looks.sample, looks.workers.see(looks.sample), looks.now)


def _drawn(looks: Looks, lines: int | None, width: int) -> Any:
    seen = looks.workers.see(looks.sample)
    return picture(
        looks.store.shown, looks.sample, looks.before, seen, looks.now, lines, width, looks.prefix
    )


def _print_all(out: Output, looks: Looks) -> None:
    while True:
        if looks.trouble is None:
            out.json(_facts(looks))
            out.flush()
        before = looks.trouble
        looks.look_again()
        if looks.trouble is not None and not looks.waits:
            raise looks.trouble
        if looks.trouble is not None and before is None:
            warn(f"{looks.trouble}; waiting for it")


def _watch(out: Output, looks: Looks) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def drawn() -> Any:
        width, height = out.console.size
        image = _drawn(looks, height - 1, width)
        if looks.trouble is None:
            return image
        return Group(Text(f"the store is away: {looks.trouble}", "bold red"), image)

    with Live(drawn(), console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            looks.look_again()
            live.update(drawn(), refresh=True)
