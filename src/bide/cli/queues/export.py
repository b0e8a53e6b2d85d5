"""`bide export`: write a queue as lines of JSON."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import raise_on_termination
from bide.cli.output import DONE, Bar, Output, escape_json, plural
from bide.cli.store import CommandStore


@on_store(option.queue)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    metavar="PATH",
    help="Write to a file, which is created when the export is complete.",
)
def export(store: CommandStore, out: Output, queue: str, output: str) -> None:
    """Write a queue as lines of JSON.

    The queue can be in use meanwhile, and memory use is constant. Messages that a worker holds are
    included: they are ready again after an import.

    \b
    Example:
      bide export orders -o orders.jsonl
      bide export orders | gzip > orders.jsonl.gz
    """
    source = store.existing(queue)
    on_terminal = output == "-" and sys.stdout.isatty()  # which must not get control characters
    count = 0
    with Bar(f"exporting {queue}", source.counts().sizes.total) as bar, opened(output) as file:
        for line in bar.over(source.export()):
            file.write((escape_json(line) if on_terminal else line) + "\n")
            count += 1
    if output != "-":
        facts = {"exported": count, "file": output}
        out.report(facts, DONE, f"{plural(count, 'message')} of {queue} written to {output}")


@contextmanager
def opened(output: str) -> Iterator[IO[str]]:
    """Open a file that replaces an existing one of its name only when it is complete."""
    path = Path(output)
    if output == "-" or (path.exists() and not path.is_file()):  # such as a pipe
        with click.open_file(output, "w", encoding="utf-8") as file:
            yield file
        return
    path = path.resolve()  # a link stays
    path.parent.stat()  # fails here, where the error names the folder, not the unfinished file
    unfinished = path.with_name(f".bide-export-{secrets.token_hex(4)}")
    try:
        with raise_on_termination(), unfinished.open("x", encoding="utf-8") as file:
            if path.exists():
                unfinished.chmod(path.stat().st_mode)
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
