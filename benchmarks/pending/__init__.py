"""Lateness against the number of pending messages: `python -m benchmarks pending`."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.pending.measuring import BURST, PENDING, SECONDS, measure_burst, measure_pending
from benchmarks.pending.report import HEADINGS, cells, write
from benchmarks.pending.stores import STORES

__all__ = ["add_options", "main"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--store", action="append", choices=STORES, help="only this; repeatable")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="all numbers times this (1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row and line")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="where the table and the charts are written"
    )


def main(chosen: argparse.Namespace) -> int:
    """Measure and print; return 1 when a row could not be measured."""
    rows: list[dict[str, Any]] = []
    table = Table(title="lateness against pending messages", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("store", "") else "right")
    for row in _rows(chosen.store or STORES, chosen.scale):
        rows.append(row)
        table.add_row(*cells(row))
        if chosen.json:
            print(json.dumps(row), flush=True)
        else:
            print("  ".join(cells(row)), file=sys.stderr)
    if not chosen.json:
        Console(width=None if sys.stdout.isatty() else 140).print(table)
    if chosen.write is not None:
        for path in write(chosen.write, rows):
            print(path, file=sys.stderr)
    return int(any("error" in row for row in rows))


def _rows(stores: tuple[str, ...], scale: float) -> Iterator[dict[str, Any]]:
    for store in stores:
        for pending in PENDING:
            yield from measure_pending(
                store, max(round(pending * scale), 1), max(SECONDS * scale, SECONDS / 5)
            )
        yield measure_burst(store, max(round(BURST * scale), 1))
