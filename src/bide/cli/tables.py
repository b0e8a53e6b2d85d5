"""Tables for people, in the one style that all of bide's have, on terminals of any width."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bide.cli.output import Output

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["ID", "TEXT", "Column", "print_table", "table_of"]

ID = 26
"""How narrow names that lead a line may become: an id that was made up is there to be copied."""

TEXT = 8
"""How narrow a text that closes a line may become."""

GAP = 2


class Column(NamedTuple):
    """A column, and what becomes of it where the terminal is too narrow."""

    name: str
    least: int | None = None
    """It is cut down to so many characters; `None`: it stays whole."""
    falls: int = 0
    """When no cut is enough it is left out, those of the lowest number first; 0: it stays."""
    right: bool = False
    """Whether its cells are aligned to the right, as numbers are."""
    wraps: bool = False
    """Whether what is cut goes on in the next line."""


def table_of(
    columns: Sequence[Column], rows: Sequence[Sequence["Text"]], width: int | None
) -> "tuple[Table, list[str]]":
    """Return a table that fits into a width, and the names of the columns that had no place.

    The last of the columns that may be cut is cut first. When that is not enough, columns fall out;
    those that say what a line is about stay whole however narrow the terminal is.

    Args:
        columns: what stands where.
        rows: the cells of each line, one for each column.
        width: of the terminal; `None`: as wide as it takes.
    """
    from rich import box
    from rich.table import Table

    wanted = [
        max([len(column.name), *(_width(row[place]) for row in rows)])
        for place, column in enumerate(columns)
    ]
    least = [
        wide if column.least is None else min(wide, max(column.least, len(column.name)))
        for column, wide in zip(columns, wanted, strict=True)
    ]
    kept = list(range(len(columns)))
    falling = sorted((one for one in kept if columns[one].falls), key=lambda n: columns[n].falls)
    while width is not None and falling and _sum(least, kept) > width:
        kept.remove(falling.pop(0))
    spare = sum(wanted) if width is None else max(0, width - _sum(least, kept))
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0),
        width=None if width is None or _sum(least, kept) <= width else _sum(least, kept),
    )  # fmt: skip
    for place in kept:
        more = min(spare, wanted[place] - least[place])
        spare -= more
        column = columns[place]
        table.add_column(
            column.name, justify="right" if column.right else "left", width=least[place] + more,
            no_wrap=not column.wraps, overflow="fold" if column.wraps else "ellipsis",
        )  # fmt: skip
    for row in rows:
        table.add_row(*[row[place] for place in kept])
    return table, [
        column.name for place, column in enumerate(columns) if column.name and place not in kept
    ]


def print_table(out: Output, columns: Sequence[Column], rows: Sequence[Sequence["Text"]]) -> None:
    """Print a table, and say which columns the terminal has no place for."""
    table, gone = table_of(columns, rows, out.console.width)
    out.console.print(table, crop=False)
    if gone:
        out.text((f"no room for {', '.join(gone)}; --json shows all", "dim"))


def _width(cell: "Text") -> int:
    return max(line.cell_len for line in cell.split("\n", allow_blank=True))


def _sum(widths: Sequence[int], places: Sequence[int]) -> int:
    return sum(widths[place] + GAP for place in places)
