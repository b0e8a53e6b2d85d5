"""Make the reference of the command line as readable as its --help."""

import re
from itertools import groupby

import click
from sphinx.application import Sphinx

EVERYWHERE = ("--url", "--json", "--debug")
"""Options of every command; the top of the page describes them once."""


def examples(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Show examples as code, with their spaces."""
    found: list[str] = []
    for bar, run in groupby(list(lines), key=lambda line: line.startswith("| ")):
        if bar:
            title, *block = (line.removeprefix("| ") for line in run)
            found += [title, "", ".. code-block:: text", "", *(f"   {line}" for line in block), ""]
        else:
            found += map(_literal, run)
    lines[:] = found


def _literal(line: str) -> str:
    """Keep the two dashes before an option from becoming one dash."""
    return re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"``\g<0>``", line)


def common(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Leave out the options that every command has."""
    kept: list[str] = []
    skipping = False
    for line in lines:
        if line.startswith(".. option::"):
            skipping = line.split()[2].rstrip(",") in EVERYWHERE
        if not skipping:
            kept.append(line if line.startswith("..") else _literal(line))
    lines[:] = kept


def nothing(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Leave out what the usage line already says."""
    lines.clear()


def setup(app: Sphinx) -> dict[str, bool]:
    """Listen to sphinx-click."""
    app.connect("sphinx-click-process-description", examples)
    app.connect("sphinx-click-process-epilog", examples)
    app.connect("sphinx-click-process-options", common)
    app.connect("sphinx-click-process-arguments", nothing)
    if "sphinx-click-process-envars" not in app.events.events:
        app.add_event("sphinx-click-process-envars")  # sphinx-click misnames the event
    app.connect("sphinx-click-process-envars", nothing)
    return {"parallel_read_safe": True}
