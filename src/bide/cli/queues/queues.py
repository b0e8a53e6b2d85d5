"""`bide queues`: list the queues of the store."""

from typing import Any, NamedTuple

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import NAME, Cell, Column, Output
from bide.cli.queue_output import facts_of, paused_text, size_cells
from bide.cli.store import CommandStore
from bide.cli.times import now_ms, rounded
from bide.consuming.declared_settings import declared_of, settings_out
from bide.model.commands import Count
from bide.model.replies import SIZES, Counts
from bide.model.times import settings_text

COLUMNS = (
    Column("queue", least=NAME),
    *[Column(name, right=True, extra=True) for name in (*SIZES, "late by")],
    Column(""),
    Column("settings", extra=True),
)


class ListedQueue(NamedTuple):
    """What is shown of a queue."""

    queue: str
    counts: Counts
    declared: dict[str, int | str]
    """The settings that an app declares, by name as `Configure` takes them."""


@on_store(option.prefix, option.internal)
def queues(store: CommandStore, out: Output, prefix: str, own: bool) -> None:
    """List the queues of the store.

    With PREFIX, only those whose names begin with it. In a pipe, each line is: name, delayed,
    ready, leased, dead, and "paused" if it is. Settings that the app of a worker declares are
    shown; `bide set` may have changed them since.

    \b
    Example:
      bide queues
      bide queues shop- --json
    """
    rows = [
        ListedQueue(name, store.ask(Counts, Count(name)), store.run(declared_of(name)))
        for name in store.names(prefix, own=own)
    ]
    if prefix and not rows:
        raise store.no_queue(prefix, "no queue begins with")
    out.items(
        rows,
        COLUMNS,
        facts=_facts,
        line=lambda row: [
            row.queue,
            *[getattr(row.counts.sizes, size) for size in SIZES],
            *(["paused"] if row.counts.paused else []),
        ],
        cells=_cells,
        empty=f"no queues in {store.shown}",
    )


def _facts(row: ListedQueue) -> dict[str, Any]:
    declared = {"declared": settings_out(row.declared)} if row.declared else {}
    return {"queue": row.queue, **facts_of(row.counts), **declared}


def _cells(row: ListedQueue) -> list[Cell]:
    counts = row.counts
    late = "" if counts.oldest is None else rounded(max(0, now_ms() - counts.oldest))
    settings: Cell = f"declared: {settings_text(row.declared)}" if row.declared else ""
    paused: Cell = (paused_text(counts), "yellow")
    return [(row.queue, "bold"), *size_cells(counts), late, paused, settings]
