"""Run one set of benchmarks: `python -m benchmarks core`."""

import argparse
import dataclasses
import importlib
import json
import logging
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import compare, pending
from benchmarks.figure import Figure
from benchmarks.peers import command as peers

SETS = {
    "core": "the queue on SQLite and in memory (10 min)",
    "redis": "the queue on a Redis server",
    "postgres": "the queue on a PostgreSQL server",
    "worker": "handlers in one worker process, on SQLite",
    "transactions": "an ack within a transaction, on SQLite and PostgreSQL",
    "tasks": "puts of tasks, and a worker with tasks, beside those without",
    "repeating": "puts and acks of messages that repeat, beside those that do not",
    "local-dates": "100,000 local dates are moved by newer time zones",
    "recovering": "fresh messages while a backlog drains, with a plan and without",
    "scale": "bytes and operations of a message with a million pending, on each store",
    "server": "the service over HTTP, with a load program beside it",
    "push": "subscriptions, from bide serve to a local receiver",
    "rabbitmq": "messages to RabbitMQ and from it, on SQLite",
    "celery": "delayed tasks of Celery, on a Redis server",
    "dashboard": "the dashboard with 5,000,000 messages pending (10 min)",
    "timing": "the timers of one process",
    "timing-java": "the timers of one process beside Java's (needs a JDK)",
}

COMMANDS = {"compare": compare.main, "peers": peers.main, "pending": pending.main}
"""Sets with options and a table of their own."""


def main() -> int:
    """Measure, print, and return 1 when a goal was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure bide against the raw limits here."
    )
    commands = parser.add_subparsers(dest="set", required=True, metavar="SET")
    compare.add_options(
        commands.add_parser("compare", help="this tree beside an older one, in turns")
    )
    pending.add_options(
        commands.add_parser("pending", help="lateness with up to 10,000,000 pending (40 min)")
    )
    peers.add_options(
        commands.add_parser("peers", help="one table beside other queues, installed here (1 h)")
    )
    for name, what in SETS.items():
        command = commands.add_parser(name, help=what)
        command.add_argument("--json", action="store_true", help="one JSON object a figure")
        command.add_argument("--only", metavar="WORD", help="only measurements with this word")
    chosen = parser.parse_args()
    logging.getLogger("bide").setLevel(logging.ERROR)  # servers without a disk are meant here
    if chosen.set in COMMANDS:
        return COMMANDS[chosen.set](chosen)
    module = importlib.import_module("benchmarks." + chosen.set.replace("-", "_"))
    table = _table(chosen.set)
    met: list[bool | None] = []
    for figure in module.run(chosen.only or ""):
        met.append(figure.met)
        if chosen.json:
            print(json.dumps(dataclasses.asdict(figure)), flush=True)
        else:
            print(f"{figure.name}: {_number(figure.value)} {figure.unit}", file=sys.stderr)
            table.add_row(*_row(figure))
    if not met:
        parser.error(f"--only {chosen.only}: no function in {module.__name__} has this in its name")
    if not chosen.json:
        Console(width=None if sys.stdout.isatty() else 140).print(table)
    return int(False in met)


def _table(name: str) -> Table:
    table = Table(title=f"bide benchmarks: {name}", title_justify="left")
    table.add_column("work")
    table.add_column("measured", justify="right")
    table.add_column("raw limit", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("to reach")
    table.add_column("", justify="center")
    return table


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        f"{_number(figure.value)} {figure.unit}",
        "" if figure.limit is None else f"{_number(figure.limit)} {figure.unit}",
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        figure.goal,
        {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[figure.met],
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
