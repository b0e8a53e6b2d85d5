"""`bide queues` and `bide counts`."""

from itertools import zip_longest
from typing import Any

import click

from bide.cli.options import flag, on_store, prefix_argument, queue_argument
from bide.cli.output import STYLES, Output
from bide.cli.store import NoQueue, Store
from bide.cli.tables import ID, Cell, Column, counted, grid
from bide.cli.times import local, now_ms, relative, rounded
from bide.model.commands import Count
from bide.model.replies import Counts

__all__ = ["FLOW", "SIZES", "all_option", "counts", "facts_of", "queues"]

SIZES = ("delayed", "ready", "leased", "dead")
FLOW = ("put", "acked", "cancelled", "expired", "purged", "died", "revived", "retried", "lapsed")

COLUMNS = (
    Column("queue", least=ID), *[Column(size, right=True) for size in SIZES],
    Column("late by", falls=1, right=True), Column(""),
)  # fmt: skip

all_option = flag("--all", "own", help="Include the internal queues of bide.")


def facts_of(found: Counts) -> dict[str, Any]:
    """Return counts as names and values."""
    facts: dict[str, Any] = {name: getattr(found.sizes, name) for name in SIZES}
    facts |= {name: getattr(found.flow, name) for name in FLOW}
    facts |= {"kept": found.kept, "paused": found.paused, "keep": found.keep}
    if found.oldest is not None:
        facts["oldest"] = found.oldest
    return facts


def size_cells(found: Counts) -> list[Cell]:
    """Return the numbers of messages in each state, as cells."""
    return [counted(getattr(found.sizes, size), STYLES[size]) for size in SIZES]


@click.command()
@prefix_argument
@all_option
@on_store
def queues(store: Store, out: Output, prefix: str, own: bool) -> None:
    """List the queues of the store, or those whose names begin with PREFIX.

    In a pipe, each line is: name, delayed, ready, leased, dead, and "paused" if it is.

    \b
    Example:
      bide queues
      bide queues shop- --json
    """
    found = [(name, store.ask(Counts, Count(name))) for name in store.names(prefix, own=own)]
    if prefix and not found:
        raise NoQueue(f"no queue begins with {prefix!r}", store, prefix)
    out.items(
        found, COLUMNS,
        facts=lambda one: {"queue": one[0], **facts_of(one[1])},
        line=lambda one: [
            one[0], *[getattr(one[1].sizes, size) for size in SIZES], *["paused"] * one[1].paused,
        ],
        cells=lambda one: _cells(*one),
        empty=lambda: f"no queues in {store.shown}",
    )  # fmt: skip


def _cells(name: str, found: Counts) -> list[Cell]:
    late = "" if found.oldest is None else rounded(max(0, now_ms() - found.oldest))
    paused = "paused" if found.paused else ""
    return [(name, "bold"), *size_cells(found), late, (paused, "yellow")]


@click.command()
@queue_argument
@on_store
def counts(store: Store, out: Output, queue: str) -> None:
    """Count the messages in each state, and those that have left the queue.

    In a pipe, each line is: name, count.

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
    states: list[list[Cell]] = [
        [(name, "dim"), cell] for name, cell in zip(SIZES, size_cells(found), strict=True)
    ]
    states.append([("remembered", "dim"), counted(found.kept, STYLES["gone"])])
    flow: list[list[Cell]] = [[(n, "dim"), counted(getattr(found.flow, n))] for n in FLOW]
    rows = [[*left, *right] for left, right in zip_longest(states, flow, fillvalue=["", ""])]
    out.text((queue, "bold"), ("  paused: claims get nothing", "yellow") if found.paused else "")
    out.console.print(grid(rows, "lrlr", gap=3))
    if found.oldest is not None:
        when = f"{local(found.oldest, now_ms())} ({relative(found.oldest, now_ms())})"
        out.text(("the oldest waiting message was due ", "dim"), when)
