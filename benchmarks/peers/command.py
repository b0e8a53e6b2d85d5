"""One table beside the peers: `python -m benchmarks peers`."""

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.compare.trees import ROOT
from benchmarks.peers.budget import Budget
from benchmarks.peers.catalogue import Peer, peers
from benchmarks.peers.installing import Uninstallable, command_of
from benchmarks.peers.report import Row, better, reasons, scaled, write
from benchmarks.peers.servers import SERVERS
from benchmarks.peers.session import session
from benchmarks.peers.works import WORKS, Cell, Scene, measure

__all__ = ["INSTALLER", "add_options", "main"]

INSTALLER = ROOT / "tools" / "servers"
"""Installs the servers that are missing."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--peer", action="append", choices=peers(), help="only this; repeatable")
    parser.add_argument("--work", action="append", choices=WORKS, help="only this; repeatable")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="all numbers times this (1)"
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".venv-peers", metavar="FOLDER", help="of the peers"
    )
    parser.add_argument(
        "--minutes", type=float, default=55.0, metavar="N", help="for the whole table (55)"
    )
    parser.add_argument("--install", action="store_true", help="install the peers and measure none")
    parser.add_argument("--json", action="store_true", help="one JSON object a row and line")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="where the table and the charts are written"
    )


def main(chosen: argparse.Namespace) -> int:
    """Measure and print; return 1 when a cell failed."""
    works = chosen.work or list(WORKS)
    # As with Ctrl-C, the processes of a cell end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # What it cannot install is missing on PATH, and the rows say so.
    subprocess.run([INSTALLER, "peers"], check=False)
    if chosen.install:
        return _install(chosen)
    rows: list[Row] = []
    table = Table(title="bide beside its peers", title_justify="left", show_lines=True)
    for heading in ("", *(WORKS[work].heading for work in works)):
        table.add_column(heading)
    for row in _rows(chosen, works):
        rows.append(row)
        table.add_row(row.name, *(row.text(work) for work in works))
        if chosen.json:
            print(json.dumps(row.as_json()), flush=True)
    if not chosen.json:
        Console(width=None if sys.stdout.isatty() else 180).print(table)
        print(*scaled(chosen.scale), *better(rows), *reasons(rows), sep="\n")
    if chosen.write is not None:
        for path in write(chosen.write, rows, works, chosen.scale):
            print(path, file=sys.stderr)
    failed = any(cell.state == "failed" for row in rows for cell in row.cells.values())
    return int(failed or any(row.problem for row in rows))


def _chosen_peers(chosen: argparse.Namespace) -> list[Peer]:
    return [peer for name, peer in peers().items() if name in (chosen.peer or peers())]


def _install(chosen: argparse.Namespace) -> int:
    failed = False
    for peer in _chosen_peers(chosen):
        try:
            print(f"{peer.title}: {' '.join(command_of(peer, chosen.cache))}", flush=True)
        except Uninstallable as error:
            failed = True
            print(f"{peer.title}: {error}", flush=True)
    return int(failed)


def _rows(chosen: argparse.Namespace, works: Sequence[str]) -> Iterator[Row]:
    """Yield each row when it is measured."""
    rows = list(_planned(_chosen_peers(chosen)))
    tuned_works = [work for work in works if WORKS[work].is_tuned]
    planned = [(row, tuned_works if row.is_tuned else works) for row in rows]
    shares = sum(WORKS[work].share for _, of_row in planned for work in of_row)
    budget = Budget(chosen.minutes * 60, shares)
    for row, of_row in planned:
        try:
            command = command_of(row.peer, chosen.cache)
        except Uninstallable as error:
            for work in of_row:
                budget.skip(WORKS[work].share)
            yield dataclasses.replace(row, problem=str(error))
            continue
        for work in of_row:
            share = budget.take(WORKS[work].share)
            cell = _cell(row, command, work, chosen.scale, share)
            row.cells[work] = cell
            print(f"{row.name}, {WORKS[work].heading}: {cell.text} {cell.reason}", file=sys.stderr)
        if of_row:
            yield row


def _planned(chosen: Sequence[Peer]) -> Iterator[Row]:
    """Yield the rows of peers, empty: the one with tuned settings below that with the defaults."""
    for peer in chosen:
        for store in peer.stores:
            yield Row(peer, store, False, {})
            if peer.tuned:
                yield Row(peer, store, True, {})


def _cell(row: Row, command: list[str], work: str, scale: float, share: float) -> Cell:
    """Measure a cell on an empty server, with processes of its own."""
    settings = row.peer.tuned if row.is_tuned else {}
    with (
        tempfile.TemporaryDirectory(prefix="bide-peers-") as folder,
        SERVERS[row.store]() as server,
        session(command, server, settings, Path(folder), share, row.peer.has_own_worker) as opened,
    ):
        return measure(work, Scene(opened, scale), share)
