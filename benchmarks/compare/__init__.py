"""This tree beside an older one, measured in turns: `python -m benchmarks compare REV`."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare.caller import ROWS
from benchmarks.compare.pairs import Pairs
from benchmarks.compare.side import Side
from benchmarks.compare.stores import STORES
from benchmarks.compare.trees import ROOT, check_out

__all__ = ["add_options", "main"]

HEADINGS = (
    "store",
    "work",
    "old, µs",
    "new, µs",
    "speed new/old (95 %)",
    "old in raw",
    "new in raw",
    "raw, µs",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("revision", metavar="REV", help="the older tree, such as HEAD~5")
    parser.add_argument("--only", metavar="WORD", default="", help="only rows with this word")
    parser.add_argument("--store", action="append", choices=STORES, help="only this; repeatable")
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="how many pairs (7)")
    parser.add_argument(
        "--seconds", type=float, default=0.1, metavar="S", help="of each measurement (0.1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row and line")
    parser.add_argument(
        "--repository", type=Path, default=ROOT, metavar="FOLDER", help="that knows the revision"
    )


def main(chosen: argparse.Namespace) -> int:
    """Measure and print; return 1 when a row could not be measured on this tree."""
    table = Table(title=f"this tree against {chosen.revision}", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("store", "work") else "right")
    problems: dict[str, None] = {}
    failed = False
    with check_out(chosen.revision, chosen.repository) as old:
        for store in chosen.store or STORES:
            for pairs in _compare(store, old, chosen):
                figures = pairs.figures()
                failed |= "new" not in figures
                if chosen.json:
                    print(json.dumps(figures), flush=True)
                table.add_row(*_cells(figures))
                if "error" in figures:
                    problems[f"{store}, {figures['error']}"] = None
            print(f"{store}: measured", file=sys.stderr)
    if not chosen.json:
        Console(width=None if sys.stdout.isatty() else 140).print(table)
        print(*problems, sep="\n")
    return int(failed)


def _compare(store: str, old: Path, chosen: argparse.Namespace) -> list[Pairs]:
    """Measure the rows of one store in turns."""
    rows = [Pairs(store, row) for row in ROWS if chosen.only in row]
    with ExitStack() as stack:
        before, after = Side(old, store, stack), Side(ROOT, store, stack)
        for turn in range(chosen.turns):
            with before.turn(chosen.seconds) as old_row, after.turn(chosen.seconds) as new_row:
                for number, pairs in enumerate(rows):
                    measures = [(old_row, pairs.old), (new_row, pairs.new)]
                    if (turn + number) % 2:  # what runs second may find warmer caches
                        measures.reverse()
                    for measure, turns in measures:
                        turns.append(measure(pairs.row))
    return rows


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row."""

    def number(name: str, form: str = ",.4g") -> str:
        return format(figures[name], form) if name in figures else ""

    speed = ""
    if "speed" in figures:
        speed = f"{figures['speed']:.2f} ({figures['low']:.2f} to {figures['high']:.2f})"
    return (
        figures["store"],
        figures["row"],
        number("old"),
        number("new"),
        speed or f"{figures['error'].partition(':')[0]} cannot",
        number("old_in_raw", ".2f"),
        number("new_in_raw", ".2f"),
        f"{figures['raw']}, {figures['new_raw']:.4g}" if "new_raw" in figures else "",
    )
