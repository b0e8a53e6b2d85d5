"""Print results: tables for people, lines of text for pipes, JSON for programs."""

import errno
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console

    from bide.cli.tables import Cell, Column

T = TypeVar("T")

STYLES = {
    "delayed": "cyan", "ready": "green", "leased": "yellow", "dead": "red",
    "acked": "bright_black", "expired": "magenta", "gone": "bright_black",
}  # fmt: skip
"""The colour of each state on a terminal."""

Part = str | tuple[str, str]
"""A piece of a sentence: text, or text and style."""

DONE: Part = ("✓ ", "green")
NOT_DONE: Part = ("✗ ", "red")
NOTHING: Part = ("= ", "dim")
WARNING: Part = ("! ", "yellow")

_BARE = {
    "cancelled": "cancel", "moved": "move", "dead": "move-dead", "purged": "purge",
    "revived": "revive", "stored": "store", "rescheduled": "reschedule", "finished": "finish",
}  # fmt: skip


class Output:
    """Where a command prints. Imports rich only if a terminal is there to see it.

    Args:
        as_json: print one JSON object a line, wherever it goes.

    Raises:
        OSError: standard output is closed: what is claimed there would be lost.
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
        line = msgspec.json.encode(value).decode()
        if not sys.stdout.encoding.lower().startswith("utf"):
            line = json.dumps(msgspec.json.decode(line), separators=(",", ":"))  # all in ASCII
        sys.stdout.write(line + "\n")

    def row(self, *columns: object) -> None:
        """Print a line of columns, with tabs between them."""
        sys.stdout.write("\t".join(escape(str(column)) for column in columns) + "\n")

    def line(self, facts: Any, *columns: object) -> None:
        """Print an item for programs: as JSON, or in a pipe as a line of columns."""
        if self.as_json:
            self.json(facts)
        else:
            self.row(*columns)

    def text(self, *parts: Part) -> None:
        """Print a sentence on the terminal."""
        from rich.text import Text

        escaped = [
            escape(part) if isinstance(part, str) else (escape(part[0]), part[1]) for part in parts
        ]
        self.console.print(Text.assemble(*escaped), soft_wrap=True)

    def report(
        self, facts: dict[str, Any], *sentence: Part, would: Sequence[str] | None = None
    ) -> None:
        """Print facts as JSON, as a line `name<tab>value` each, or for people as a sentence.

        Args:
            facts: names and values.
            sentence: the same for people.
            would: for a dry run, the names of facts that were only counted, which a pipe shows as
                "would-...". JSON keeps the names and says that it was a dry run.
        """
        if self.as_json:
            self.json(facts if would is None else {**facts, "dry_run": True})
        elif self.terminal:
            self.text(*sentence)
        else:
            for name, value in facts.items():
                name = f"would-{_BARE[name]}" if name in (would or ()) else name
                self.row(name, str(value).lower() if isinstance(value, bool) else value)

    def report_run(
        self, result: msgspec.Struct, details: Sequence[str], *sentence: Part, dry_run: bool,
        would: Sequence[str],
    ) -> None:  # fmt: skip
        """Print what a long run has done, or in a dry run would do; only JSON has the details."""
        facts = msgspec.structs.asdict(result)
        more = {name: facts.pop(name) for name in details}
        if self.as_json:
            facts |= more | {"dry_run": dry_run}
        self.report(facts, *sentence, would=would if dry_run else None)

    def items(
        self,
        items: Iterable[T],
        columns: "Sequence[Column]",
        *,
        facts: Callable[[T], Any],
        line: Callable[[T], Iterable[object]],
        cells: "Callable[[T], Sequence[Cell]]",
        empty: str,
        most: int | None = None,
        more: str = "",
    ) -> None:
        """Print items: a JSON object or a line each, as they come, or all in one table.

        Args:
            items: what to print.
            columns: of the table.
            facts: returns an item for JSON.
            line: returns the columns of an item for a pipe.
            cells: returns the cells of an item, one for each column.
            empty: what a terminal says when there is no item.
            most: how many items are printed at most.
            more: what stderr says if there are more.
        """
        left = iter(items)
        shown = islice(left, most)
        if not self.terminal:
            for item in shown:
                if self.as_json:
                    self.json(facts(item))
                else:
                    self.row(*line(item))
        elif rows := [cells(item) for item in shown]:
            from bide.cli.tables import print_table

            print_table(self, columns, rows)
        else:
            self.text((empty, "dim"))
        if more and next(left, None) is not None:
            warn(more)

    def flush(self) -> None:
        """Send everything that was printed."""
        sys.stdout.flush()


_HARMFUL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that move the cursor, change the direction, break the line, or show nothing:
control, format, surrogate, private, unassigned, line and paragraph separators."""


def escape(text: str) -> str:
    """Return a text with its control and format characters escaped, so that a terminal is safe.

    Example:
        >>> escape("a\\x1b[31mb"), escape("abc\\u202edef")
        ('a\\\\x1b[31mb', 'abc\\\\u202edef')
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _HARMFUL else c
        for c in text
    )


def warn(text: str) -> None:
    """Print a remark to stderr."""
    click.echo(escape(text), err=True)


def first_line(text: str | None) -> str:
    """Return the first line of an error, or nothing."""
    return next(iter((text or "").splitlines()), "")


def plural(count: int, what: str) -> str:
    """Return a count with its noun.

    Example:
        >>> plural(1, "message"), plural(2_000, "message")
        ('1 message', '2,000 messages')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
