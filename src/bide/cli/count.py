"""`bide queues` and `bide counts`."""

from typing import Any

import click

from bide.cli.moments import local, now_ms, relative, rounded
from bide.cli.options import on_store, prefix_argument, queue_argument
from bide.cli.output import STYLES, Output
from bide.cli.store import NoQueue, Store
from bide.cli.tables import ID, Column, print_table
from bide.model.commands import Count
from bide.model.replies import Counts

__all__ = ["FLOW", "SIZES", "counts", "facts_of", "queues"]

SIZES = ("delayed", "ready", "leased", "dead")
FLOW = ("put", "acked", "cancelled", "expired", "purged", "died", "revived", "retried", "lapsed")


def facts_of(found: Counts) -> dict[str, Any]:
    """Return counts as names and values."""
    facts: dict[str, Any] = {name: getattr(found.sizes, name) for name in SIZES}
    facts |= {name: getattr(found.flow, name) for name in FLOW}
    facts["kept"] = found.kept
    facts["paused"] = found.paused
    facts["keep"] = found.keep
    if found.oldest is not None:
        facts["oldest"] = found.oldest
    return facts


@click.command()
@prefix_argument
@click.option("--all", "own", is_flag=True, help="Those that bide keeps for itself as well.")
@on_store
def queues(store: Store, out: Output, prefix: str, own: bool) -> None:
    """List the queues of the store, or those whose names begin with PREFIX.

    In a pipe a line is: name, delayed, ready, leased, dead, and "paused" if it is.

    \b
    Example:
      bide queues
      bide queues shop- --json
    """
    rows = [(name, store.ask(Counts, Count(name))) for name in store.names(prefix, own=own)]
    if prefix and not rows:
        raise NoQueue(f"no queue begins with {prefix!r}", store, prefix)
    if out.terminal and rows:
        _table(out, rows)
    elif out.terminal:
        out.text((f"no queues in {store.shown}", "dim"))
    for name, found in rows if not out.terminal else ():
        if out.as_json:
            out.json({"queue": name, **facts_of(found)})
        else:
            sizes = (getattr(found.sizes, size) for size in SIZES)
            out.row(name, *sizes, *["paused"] * found.paused)


def _table(out: Output, rows: list[tuple[str, Counts]]) -> None:
    from rich.text import Text

    now = now_ms()
    lines = []
    for name, found in rows:
        cells = [Text(name, "bold")]
        for size in SIZES:
            count = getattr(found.sizes, size)
            cells.append(Text(f"{count:,}", STYLES[size] if count else "dim"))
        late = "" if found.oldest is None else rounded(max(0, now - found.oldest))
        cells += [Text(late), Text("paused" if found.paused else "", "yellow")]
        lines.append(cells)
    sizes = [Column(size, right=True) for size in SIZES]
    columns = [Column("queue", least=ID), *sizes, Column("late by", falls=1, right=True)]
    print_table(out, [*columns, Column("")], lines)


@click.command()
@queue_argument
@on_store
def counts(store: Store, out: Output, queue: str) -> None:
    """Count the messages in each state, and what has become of all others.

    In a pipe a line is: name, count.

    \b
    Example:
      bide counts orders
      bide counts orders --json | jq .ready
    """
    found = store.existing(queue).counts()
    if not out.terminal:
        facts = facts_of(found)
        out.report({"queue": queue, **facts} if out.as_json else facts)
        return
    from rich.table import Table
    from rich.text import Text

    now = now_ms()
    sheet = Table.grid(padding=(0, 3))
    for _ in range(2):
        sheet.add_column(style="dim")
        sheet.add_column(justify="right")
    states = [(name, getattr(found.sizes, name), STYLES[name]) for name in SIZES]
    states.append(("remembered", found.kept, "bright_black"))
    flow = [(name, getattr(found.flow, name)) for name in FLOW]
    for number, (name, count) in enumerate(flow):
        left = ("", Text(""))
        if number < len(states):
            state, size, style = states[number]
            left = state, Text(f"{size:,}", style if size else "dim")
        sheet.add_row(*left, name, Text(f"{count:,}", "" if count else "dim"))
    out.text((queue, "bold"), ("  paused: nobody can claim", "yellow") if found.paused else "")
    out.console.print(sheet)
    if found.oldest is not None:
        when = f"{local(found.oldest, now)} ({relative(found.oldest, now)})"
        out.text(("the oldest that waits was due ", "dim"), when)
