"""What is printed where: tables for people, lines of text for pipes, JSON for programs."""

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output", "printable"]

STYLES = {
    "delayed": "cyan",
    "ready": "green",
    "leased": "yellow",
    "dead": "red",
    "acked": "bright_black",
    "expired": "magenta",
    "gone": "bright_black",
}
"""How states look on a terminal."""


class Output:
    """Where a command prints. rich is imported when a terminal is there to see it.

    Args:
        as_json: print one JSON object a line, wherever it goes.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.terminal = not as_json and sys.stdout.isatty()

    @cached_property
    def console(self) -> "Console":
        """The terminal."""
        from rich.console import Console

        return Console(highlight=False)

    def json(self, value: Any) -> None:
        """Print a value as one line of JSON."""
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")

    def row(self, *columns: object) -> None:
        """Print a line of columns, with tabs between them."""
        sys.stdout.write("\t".join(map(str, columns)) + "\n")

    def text(self, *parts: str | tuple[str, str]) -> None:
        """Print a sentence on the terminal; parts are texts, or pairs of text and style."""
        from rich.text import Text

        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def report(
        self,
        facts: dict[str, Any],
        *sentence: str | tuple[str, str],
        would: Mapping[str, str] | None = None,
    ) -> None:
        """Print facts as JSON, as a line `name<tab>value` each, or for people as a sentence.

        Args:
            facts: names and values.
            sentence: the same for people.
            would: of a dry run, what facts are called in a pipe that were only counted; JSON has
                the names of what is done, and says that it was a dry run.
        """
        if self.as_json:
            self.json(facts if would is None else {**facts, "dry_run": True})
        elif self.terminal:
            self.text(*sentence)
        else:
            for name, value in facts.items():
                name = name if would is None else would.get(name, name)
                self.row(name, str(value).lower() if isinstance(value, bool) else value)

    def flush(self) -> None:
        """Have everything leave this process."""
        sys.stdout.flush()


def printable(text: str) -> str:
    """Return a text in which nothing moves the cursor, breaks the line or speaks to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
