"""Print results: tables for people, lines of text for pipes, JSON for programs; progress bars."""

import errno
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import click
import msgspec

from bide.model.body import on_one_line

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")

STYLES = {
    "delayed": "cyan",
    "ready": "green",
    "leased": "yellow",
    "stopping": "bright_red",
    "dead": "red",
    "acked": "bright_black",
    "expired": "magenta",
    "cancelled": "bright_black",
    "purged": "bright_black",
    "moved": "bright_black",
}
"""The color of each state, and of each way to end, on a terminal."""

Part = str | tuple[str, str]
"""A piece of a sentence: text, or text and style."""

Cell = Part | list[Part]
"""The content of a cell: a text, a text with a style, or several of them."""

DONE: Part = ("✓ ", "green")
NOT_DONE: Part = ("✗ ", "red")
NOTHING: Part = ("= ", "dim")
WARNING: Part = ("! ", "yellow")

_PLANNED = {
    "cancelled": "would-cancel",
    "moved": "would-move",
    "dead": "would-move-dead",
    "purged": "would-purge",
    "dropped": "would-drop",
    "superseded": "would-supersede",
    "revived": "would-revive",
    "stored": "would-store",
    "rescheduled": "would-reschedule",
}
"""The names of facts in a pipe after a dry run, which only counted them."""

ID = 26
"""The least width of a column with ids: a generated one stays whole, so that users can copy it."""

NAME = 20
"""The least width of a column with the names of queues and the like."""

TEXT = 8
"""The least width of a column with text."""

COLUMN_GAP = 2

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class Column(NamedTuple):
    """A column of a table."""

    name: str
    least: int | None = None
    """On a narrow terminal it is cut to this many characters; `None`: it stays whole."""
    right: bool = False
    """Whether its cells are aligned to the right, as numbers are."""
    extra: bool = False
    """Whether it is left out if the table is still too wide."""


class Output:
    """Prints the output of a command. Imports rich only for a terminal.

    Args:
        as_json: print one JSON object a line, wherever it goes.

    Raises:
        OSError: standard output is closed, so that claimed messages would be lost.
    """

    def __init__(self, as_json: bool = False) -> None:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "standard output is closed; redirect it, as in >/dev/null")
        self.as_json = as_json
        self.terminal = not as_json and sys.stdout.isatty()

    @cached_property
    def console(self) -> "Console":
        """The terminal."""
        from rich.console import Console

        return Console(highlight=False)

    def json(self, value: Any) -> None:
        """Print a value as one line of JSON."""
        line = on_one_line(msgspec.json.encode(value)).decode()
        if not sys.stdout.encoding.lower().startswith("utf"):
            # Only strings have such characters. Numbers stay as they are, digit by digit.
            line = _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], line)
        sys.stdout.write((escape_json(line) if sys.stdout.isatty() else line) + "\n")

    def body(self, data: bytes, *, is_json: bool) -> None:
        """Print the body of a message as it is; on a terminal, without what would steer it."""
        if not sys.stdout.isatty():
            line_end = b"\n" if is_json else b""  # text and bytes stay unchanged
            sys.stdout.buffer.write(data + line_end)
        elif is_json:
            sys.stdout.write(escape_json(data.decode()) + "\n")
        else:
            text = data.decode(errors="backslashreplace")
            sys.stdout.write("\n".join(map(escape, text.split("\n"))) + "\n")

    def row(self, *columns: object) -> None:
        """Print a line of columns, with tabs between them.

        In a pipe ids stay as they are, so that programs can give them back: only control characters
        are escaped, which no id has.
        """
        safe = escape if self.terminal else escape_controls
        sys.stdout.write("\t".join(safe(str(column)) for column in columns) + "\n")

    def line(self, facts: Any, *columns: object) -> None:
        """Print an item for programs: as JSON, or in a pipe as a line of columns."""
        if self.as_json:
            self.json(facts)
        else:
            self.row(*columns)

    def text(self, *parts: Part) -> None:
        """Print a sentence, with its styles if this is a terminal."""
        self.console.print(text_of(list(parts)), soft_wrap=True)

    def report(self, facts: dict[str, Any], *sentence: Part, dry_run: bool = False) -> None:
        """Print facts as JSON, as a line `name<tab>value` each, or for people as a sentence.

        Args:
            facts: names and values.
            sentence: the same for people.
            dry_run: whether facts were only counted, which a pipe shows as "would-...". JSON keeps
                the names and says that it was a dry run.
        """
        if self.as_json:
            self.json({**facts, "dry_run": True} if dry_run else facts)
        elif self.terminal:
            self.text(*sentence)
        else:
            for name, value in facts.items():
                name = _PLANNED.get(name, name) if dry_run else name
                self.row(name, str(value).lower() if isinstance(value, bool) else value)

    def report_run(
        self, result: msgspec.Struct, details: Sequence[str], *sentence: Part, dry_run: bool
    ) -> None:
        """Print what a long run has done, or in a dry run would do.

        Args:
            result: its figures.
            details: the fields of the result that only JSON has.
            sentence: the result for people.
            dry_run: whether it was a dry run.
        """
        facts = msgspec.structs.asdict(result)
        detail_facts = {name: facts.pop(name) for name in details}
        if self.as_json:
            facts |= detail_facts | {"dry_run": dry_run}
        self.report(facts, *sentence, dry_run=dry_run)

    def items(
        self,
        items: Iterable[T],
        columns: Sequence[Column],
        *,
        line: Callable[[T], Iterable[object]],
        cells: Callable[[T], Sequence[Cell]],
        empty: str,
        facts: Callable[[T], Any] = lambda item: item,
        most: int | None = None,
        more: str = "",
    ) -> None:
        """Print items: a JSON object or a line each, as they come, or all in one table.

        Args:
            items: what to print.
            columns: the columns of the table.
            line: returns the columns of an item for a pipe.
            cells: returns the cells of an item, one for each column.
            empty: what a terminal says when there is no item.
            facts: returns an item for JSON.
            most: how many items are printed at most.
            more: what stderr says if there are more.
        """
        remaining = iter(items)
        shown = islice(remaining, None if most is None else min(most, sys.maxsize))
        if not self.terminal:
            for item in shown:
                if self.as_json:
                    self.json(facts(item))
                else:
                    self.row(*line(item))
        elif rows := [cells(item) for item in shown]:
            self.console.print(table_of(columns, rows, self.console.width), crop=False)
        else:
            self.text((empty, "dim"))
        if more and next(remaining, None) is not None:
            warn(more)


def escape(text: str) -> str:
    """Return a text with its control and format characters escaped, so that a terminal is safe.

    They move the cursor, change the direction, break the line, or show nothing.

    Example:
        >>> escape("a\\x1b[31mb"), escape("abc\\u202edef")
        ('a\\\\x1b[31mb', 'abc\\\\u202edef')
    """
    if text.isprintable():
        return text
    return "".join(
        character if _is_harmless(character) else character.encode("unicode_escape").decode()
        for character in text
    )


def escape_controls(text: str) -> str:
    """Return a text with its control characters escaped: it stays on its line, in its column.

    Example:
        >>> print(escape_controls("a\\x1b[31mb\\n"))
        a\\x1b[31mb\\n
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # a space


def escape_json(text: str) -> str:
    """Return JSON with its control and format characters as escapes of JSON, as for `escape`.

    Example:
        >>> print(escape_json('"a\u202eb\U000e0001"'))
        "a\\u202eb\\udb40\\udc01"
    """
    if text.isprintable():
        return text
    return "".join(
        character if _is_harmless(character) else json.dumps(character).strip('"')
        for character in text
    )


def warn(text: str) -> None:
    """Print a remark to stderr."""
    click.echo(escape(text), err=True)


def first_line(text: str | None) -> str:
    """Return the first line of an error, or nothing."""
    return next(iter((text or "").splitlines()), "")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, which is given in the singular.

    Example:
        >>> plural(1, "message"), plural(2_000, "message")
        ('1 message', '2,000 messages')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Bar:
    """A progress bar on stderr, which appears when its block has lasted for a second.

    Args:
        label: what it says, such as "exporting orders".
        total: how much there is to do; `None` if that is unknown, or known later: see `expect`.
    """

    progress: "Progress | None" = None
    """`None`: stderr is no terminal, and nothing is shown."""

    def __init__(self, label: str, total: int | None = None) -> None:
        if not sys.stderr.isatty():
            return
        from rich import progress as rich
        from rich.console import Console

        self.progress = rich.Progress(
            "{task.description}",
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            console=Console(stderr=True),
            refresh_per_second=1,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self.progress.add_task(label, total=total)

    def expect(self, total: int) -> None:
        """Set how much there is to do."""
        self._update(total=total)

    def advance(self, by: int = 1) -> None:
        """Count what was done."""
        self._update(advance=by)

    def over(self, items: Iterable[T], size: Callable[[T], int] = lambda item: 1) -> Iterator[T]:
        """Yield items, and count each by its size when the next one is asked for."""
        for item in items:
            yield item
            self.advance(size(item))

    def __enter__(self) -> Self:
        if self.progress is not None:
            self.progress.live.start()  # draws after a second; `Progress.start` draws at once
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress is not None:
            self._update(visible=False)  # it draws for the last time
            self.progress.live.stop()

    def _update(self, **change: int) -> None:
        if self.progress is not None:
            self.progress.update(self._task, **change)  # type: ignore[arg-type]


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


def table_of(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> "Table":
    """Return a table that fits into a width, and names the columns that were left out.

    Columns without content are not shown. The last column that may be cut is cut first. If cuts are
    not enough, extra columns are left out, the last one first.

    Args:
        columns: the columns, in order.
        rows: the cells of each line, one for each column.
        width: the width of the terminal.
    """
    from rich import box
    from rich.table import Table

    texts = [[text_of(cell) for cell in row] for row in rows]
    kept, widths, omitted = _fit(columns, texts, width)
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
        width=sum(widths[place] + COLUMN_GAP for place in kept),
        caption_justify="left",
        caption_style="dim",
    )
    if names := ", ".join(filter(None, omitted)):
        table.caption = f"no room for {names}; --json shows all"
    for place in kept:
        column = columns[place]
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.name, justify=justify, width=widths[place], no_wrap=True)
    for row in texts:
        table.add_row(*[row[place] for place in kept])
    return table


def _fit(
    columns: Sequence[Column], texts: Sequence[Sequence["Text"]], width: int
) -> tuple[list[int], list[int], list[str]]:
    """Return which columns a table shows, by their places; the widths of all; and those left out.

    Args:
        columns: the columns, in order.
        texts: the cells of each line.
        width: the width of the terminal.
    """
    from rich.cells import cell_len

    kept = [place for place in range(len(columns)) if any(row[place] for row in texts)]
    widths: list[int] = []
    least_widths: list[int] = []
    for place, column in enumerate(columns):
        lines = [line for row in texts for line in row[place].plain.split("\n")]
        full_width = max(map(cell_len, [column.name, *lines]))
        widths.append(full_width)
        least = full_width if column.least is None else column.least
        least_widths.append(min(full_width, max(least, len(column.name))))

    def excess(column_widths: list[int]) -> int:
        return max(0, sum(column_widths[place] + COLUMN_GAP for place in kept) - width)

    omitted: list[str] = []
    for place in kept[::-1]:
        if columns[place].extra and excess(least_widths):
            kept.remove(place)
            omitted.insert(0, columns[place].name)
    for place in kept[::-1]:
        widths[place] = max(least_widths[place], widths[place] - excess(widths))
    return kept, widths, omitted


def grid(rows: Iterable[Sequence[Cell]], align: str) -> "Table":
    """Return a table without lines or headings.

    Args:
        rows: the cells of each line.
        align: a letter for each column: l, or r for the right.
    """
    from rich.table import Table

    table = Table.grid(padding=(0, COLUMN_GAP))
    for letter in align:
        table.add_column(justify="right" if letter == "r" else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(text_of, row))
    return table


def chart(rows: Sequence[tuple[str, str, int, str]]) -> "Table":
    """Return a bar chart, as wide as the terminal.

    Args:
        rows: the label of each bar, a remark, the count, and the color.
    """
    from rich.bar import Bar
    from rich.table import Table

    most = max(count for _label, _remark, count, _color in rows)
    table = Table.grid("", "", "", "", padding=(0, 1, 0, 0), expand=True)
    table.columns[3].ratio = 1
    for column in (table.columns[0], table.columns[2]):
        column.justify = "right"
    for label, remark, count, color in rows:
        bar = Bar(most, 0, count, color=color)
        table.add_row(label, text_of((remark, "dim")), text_of(counted(count)), bar)
    return table
