"""`bide queues`: list the queues of the store."""

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import NAME, Cell, Column, Output
from bide.cli.queue_output import facts_of, size_cells
from bide.cli.store import CommandStore
from bide.cli.times import now_ms, rounded
from bide.model.commands import Count
from bide.model.replies import SIZES, Counts

COLUMNS = (
    Column("queue", least=NAME),
    *[Column(name, right=True, extra=True) for name in (*SIZES, "late by")],
    Column(""),
)


@on_store(option.prefix, option.internal)
def queues(store: CommandStore, out: Output, prefix: str, own: bool) -> None:
    """List the queues of the store.

    With PREFIX, only those whose names begin with it. In a pipe, each line is: name, delayed,
    ready, leased, dead, and "paused" if it is.

    \b
    Example:
      bide queues
      bide queues shop- --json
    """
    rows = [(name, store.ask(Counts, Count(name))) for name in store.names(prefix, own=own)]
    if prefix and not rows:
        raise store.no_queue(prefix, "no queue begins with")
    out.items(
        rows,
        COLUMNS,
        facts=lambda row: {"queue": row[0], **facts_of(row[1])},
        line=lambda row: [
            row[0],
            *[getattr(row[1].sizes, size) for size in SIZES],
            *["paused"] * row[1].paused,
        ],
        cells=lambda row: _cells(*row),
        empty=f"no queues in {store.shown}",
    )


def _cells(name: str, counts: Counts) -> list[Cell]:
    late = "" if counts.oldest is None else rounded(max(0, now_ms() - counts.oldest))
    return [(name, "bold"), *size_cells(counts), late, ("paused" * counts.paused, "yellow")]
