"""`bide top`: a live table of queues and workers."""

import time
from typing import Any

import click

from bide.cli.moments import now_ms
from bide.cli.options import DURATION, on_store
from bide.cli.output import Output
from bide.cli.store import Store
from bide.cli.top.sample import Sample, Workers, take
from bide.cli.top.screen import as_facts, picture, print_rows
from bide.model.errors import StoreError

__all__ = ["top"]

SHORTEST = 0.1


@click.command()
@click.argument("prefix", default="")
@click.option(
    "--interval",
    type=DURATION,
    default=1,
    show_default="1s",
    metavar="TIME",
    help="How often to look.",
)
@click.option("--once", is_flag=True, help="Look once, and leave.")
@on_store
def top(store: Store, out: Output, prefix: str, interval: float, once: bool) -> None:
    """Watch queues and workers, live.

    All queues of the store, or those whose names begin with PREFIX.

    Ctrl-C ends it. Elsewhere than on a terminal it looks once; with --json it prints an object for
    each look. In a pipe a line is: "queue", name, delayed, ready, leased, dead, seconds late, and
    the counters of `bide counts`; or "worker", name, how many it holds, of which queues.

    Workers are known by the messages they hold.

    \b
    Example:
      bide top
      bide top shop- --interval 5s
      bide top --once --json | jq '.queues[] | select(.late > 60)'
    """
    if interval < SHORTEST:
        raise click.BadParameter("must be 100ms or longer", param_hint="'--interval'")
    looks = _Looks(store, prefix)
    looks.look()
    if once or not (out.terminal or out.as_json):
        _show(out, looks)
        return
    try:
        if out.as_json:
            _print_all(out, looks, interval)
        else:
            _watch(out, looks, interval)
    except KeyboardInterrupt:  # the way to leave
        return


class _Looks:
    """Looks at the store again and again; keeps the last sample, and the one before."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.workers = Workers()
        self.sample = Sample(0.0, {}, {})
        self.before: Sample | None = None
        self.trouble: str | None = None
        self._prefix = prefix

    def look(self) -> None:
        """Take a sample."""
        sample = take(self.store.ask, self.store.names(self._prefix), time.monotonic())
        self.before = self.sample if self.sample.moment else None
        self.sample = sample

    def look_again(self) -> None:
        """Take a sample; of a store that is away keep the last one, and what is wrong."""
        try:
            self.look()
            self.trouble = None
        except StoreError as error:
            self.trouble = str(error)

    def facts(self) -> dict[str, Any]:
        """Return the last sample for programs."""
        return as_facts(self.sample, self.before, self.workers.see(self.sample), now_ms())


def _show(out: Output, looks: _Looks) -> None:
    if out.as_json:
        out.json(looks.facts())
        return
    workers = looks.workers.see(looks.sample)
    if out.terminal:
        out.console.print(picture(looks.store.shown, looks.sample, looks.before, workers, now_ms()))
    else:
        print_rows(out, looks.sample, workers, now_ms())


def _print_all(out: Output, looks: _Looks, interval: float) -> None:
    while True:
        out.json(looks.facts())
        out.flush()
        time.sleep(interval)
        looks.look()


def _watch(out: Output, looks: _Looks, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def drawn() -> Any:
        seen = looks.workers.see(looks.sample)
        lines = out.console.height - 1
        image = picture(looks.store.shown, looks.sample, looks.before, seen, now_ms(), lines)
        if looks.trouble is None:
            return image
        return Group(Text(f"the store is away: {looks.trouble}", "bold red"), image)

    with Live(drawn(), console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            looks.look_again()
            live.update(drawn(), refresh=True)
