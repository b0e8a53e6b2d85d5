"""`bide export` and `bide import`."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click

from bide.cli.options import max_body_option, on_store, queue_argument
from bide.cli.output import Output
from bide.cli.progress import Bar
from bide.cli.store import Store

__all__ = ["export", "import_"]


@click.command()
@queue_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    metavar="PATH",
    help="Write to a file, which appears when it is whole.",
)
@on_store
def export(store: Store, out: Output, queue: str, output: str) -> None:
    """Write a queue as lines of JSON, while it is in use, in flat memory.

    A message that somebody holds is written as well: it is ready again after an import.

    \b
    Example:
      bide export orders -o orders.jsonl
      bide export orders | gzip > orders.jsonl.gz
    """  # fmt: skip
    orders = store.standing(queue)
    count = 0
    with Bar(f"exporting {queue}", orders.counts().sizes.total) as bar:
        with click.open_file(output, "w", encoding="utf-8", atomic=output != "-") as file:
            for line in bar.over(orders.export()):
                file.write(line + "\n")
                count += 1
    if output != "-":
        facts = {"exported": count, "file": output}
        out.report(facts, ("✓ ", "green"), f"{count:,} messages of {queue} written to {output}")


@click.command("import")
@queue_argument
@click.argument("file", type=click.File("rb"), default="-")
@max_body_option
@on_store
def import_(store: Store, out: Output, queue: str, file: IO[bytes], max_body: int) -> None:
    """Put messages from lines of an export: FILE, or stdin.

    What is there already, by its id, is kept as it is, so an import can be repeated. Each thousand
    lines are a commit; a line that is none stops the import, and the error says which it was.

    \b
    Example:
      bide import orders orders.jsonl
      zcat orders.jsonl.gz | bide import orders --url sqlite:///other.db
    """
    with Bar(f"importing bytes into {queue}", _size(file)) as bar:
        imported = store.queue(queue, max_body).load(_counted(file, bar))
    facts = {"stored": imported.stored, "kept": imported.kept}
    kept = f", {imported.kept:,} were there already and stay" if imported.kept else ""
    out.report(facts, ("✓ ", "green"), f"{imported.stored:,} messages are new in {queue}{kept}")


def _size(file: IO[bytes]) -> int | None:
    name = getattr(file, "name", None)
    return Path(name).stat().st_size if isinstance(name, str) and Path(name).is_file() else None


def _counted(file: IO[bytes], bar: Bar) -> Iterator[bytes]:
    for line in file:
        yield line
        bar.advance(len(line))
