"""`bide closed-groups`: list the groups that refuse puts."""

from collections.abc import Iterator

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Cell, Column, Output
from bide.cli.store import CommandStore
from bide.cli.times import iso, local, relative
from bide.model.limits import MAX_PAGE
from bide.model.replies import ClosedGroup
from bide.queue.sync import Queue

_COLUMNS = [Column("group"), Column("closed until"), Column("")]


@on_store(option.queue)
def closed_groups(store: CommandStore, out: Output, queue: str) -> None:
    """List the groups that refuse puts, in the order in which they open.

    In a pipe each line is: group, until when.

    \b
    Example:
      bide closed-groups orders
    """
    out.items(
        _all_of(store.queue(queue)),
        _COLUMNS,
        line=lambda closed: (closed.group, iso(closed.until)),
        cells=_cells,
        empty=f"no group of {queue} is closed",
    )


def _all_of(queue: Queue) -> Iterator[ClosedGroup]:
    """Yield all closed groups, page by page."""
    groups = queue.closed_groups(limit=MAX_PAGE)
    while groups:
        yield from groups
        groups = queue.closed_groups(after=groups[-1], limit=MAX_PAGE)


def _cells(closed: ClosedGroup) -> list[Cell]:
    return [(closed.group, "bold"), local(closed.until), (relative(closed.until), "dim")]
