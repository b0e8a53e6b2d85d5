"""Tables for people, in one style, on terminals of any width."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bide.cli.output import Output, Part, escape

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

ID = 26
"""The least width of a first column: a generated id stays whole, so that users can copy it."""

TEXT = 8
"""The least width of a last column with text."""

GAP = 2

Cell = Part | list[Part]
"""The content of a cell: a text, a text with a style, or several of them."""


class Column(NamedTuple):
    """A column, and what happens to it on a narrow terminal."""

    name: str
    least: int | None = None
    """It is cut to this many characters; `None`: it stays whole."""
    falls: int = 0
    """If cuts are not enough, columns are left out, the lowest number first; 0: it stays."""
    right: bool = False
    """Whether its cells are aligned to the right, as numbers are."""
    wraps: bool = False
    """Whether a long cell continues on the next line."""
    unless: str | None = None
    """If all its cells have this text, it is not shown."""


def text_of(cell: Cell) -> "Text":
    """Return a cell as rich takes it, safe for a terminal; its line breaks stay."""
    from rich.text import Text

    text = Text()
    for part in cell if isinstance(cell, list) else [cell]:
        words, style = (part, "") if isinstance(part, str) else part
        text.append("\n".join(map(escape, words.split("\n"))), style)
    return text


def counted(count: int, style: str = "") -> Part:
    """Return a number as a cell; zero is dim."""
    return f"{count:,}", style if count else "dim"


def table_of(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None
) -> "tuple[Table, list[str]]":
    """Return a table that fits into a width, and the names of the columns that were left out.

    The last column that may be cut is cut first. If that is not enough, columns are left out.

    Args:
        columns: the columns, in order.
        rows: the cells of each line, one for each column.
        width: of the terminal; `None`: as wide as needed.
    """
    from rich import box
    from rich.table import Table

    texts = [[text_of(cell) for cell in row] for row in rows]
    wanted = [
        max([len(column.name), *(_width(row[place]) for row in texts)])
        for place, column in enumerate(columns)
    ]
    least = [
        wide if column.least is None else min(wide, max(column.least, len(column.name)))
        for column, wide in zip(columns, wanted, strict=True)
    ]
    kept = [
        place
        for place, column in enumerate(columns)
        if column.unless is None or any(row[place].plain != column.unless for row in texts)
    ]
    shown = list(kept)
    falling = sorted((one for one in kept if columns[one].falls), key=lambda n: columns[n].falls)
    while width is not None and falling and _sum(least, kept) > width:
        kept.remove(falling.pop(0))
    spare = sum(wanted) if width is None else max(0, width - _sum(least, kept))
    too_wide = width is not None and _sum(least, kept) > width
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0),
        width=_sum(least, kept) if too_wide else None,
    )  # fmt: skip
    for place in kept:
        more = min(spare, wanted[place] - least[place])
        spare -= more
        column = columns[place]
        table.add_column(
            column.name, justify="right" if column.right else "left", width=least[place] + more,
            no_wrap=not column.wraps, overflow="fold" if column.wraps else "ellipsis",
        )  # fmt: skip
    for row in texts:
        table.add_row(*[row[place] for place in kept])
    return table, [
        columns[place].name for place in shown if columns[place].name and place not in kept
    ]


def print_table(out: Output, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table, and name the columns that did not fit."""
    table, gone = table_of(columns, rows, out.console.width)
    out.console.print(table, crop=False)
    if gone:
        out.text((f"no room for {', '.join(gone)}; --json shows all", "dim"))


def grid(rows: Iterable[Sequence[Cell]], align: str, gap: int = GAP) -> "Table":
    """Return a table without lines or headings.

    Args:
        rows: the cells of each line.
        align: a letter for each column: l, or r for the right.
        gap: how many spaces are between columns.
    """
    from rich.table import Table

    table = Table.grid(padding=(0, gap))
    for letter in align:
        table.add_column(justify="right" if letter == "r" else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(text_of, row))
    return table


def _width(cell: "Text") -> int:
    return max(line.cell_len for line in cell.split("\n", allow_blank=True))


def _sum(widths: Sequence[int], places: Sequence[int]) -> int:
    return sum(widths[place] + GAP for place in places)
