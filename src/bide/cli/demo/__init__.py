"""`bide demo`: the order timeout, for real, with a proof at the end."""

import shutil
import tempfile
from pathlib import Path

import click

from bide.cli.demo.journal import Records
from bide.cli.demo.plan import QUEUE, Plan
from bide.cli.demo.proof import prove
from bide.cli.demo.run import Stage
from bide.cli.demo.screen import print_proof, watching
from bide.cli.errors import NOT_DONE, warn
from bide.cli.output import Output
from bide.queue.sync import Queue

__all__ = ["demo"]


@click.command()
@click.option(
    "--orders",
    type=click.IntRange(50, 200_000),
    default=5_000,
    show_default=True,
    metavar="N",
    help="The number of orders.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=8,
    show_default=True,
    metavar="S",
    help="How long orders arrive; the last ones time out 4 s later.",
)
@click.option(
    "--workers",
    type=click.IntRange(2, 16),
    default=3,
    show_default=True,
    metavar="N",
    help="The number of workers; one of them is killed.",
)
@click.option("--keep", is_flag=True, help="Keep the folder with the store and the records.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def demo(
    ctx: click.Context, orders: int, seconds: float, workers: int, keep: bool, as_json: bool
) -> None:
    """Watch orders time out on time, with a proof.

    A shop puts orders with a timeout of a few seconds each, and cancels the timeouts of paid
    orders. Workers in other processes handle the rest. One worker is killed with -9 while it holds
    orders; the others get them when its leases lapse. The store is a SQLite file in a temporary
    folder.

    Each process records what it did. At the end the demo compares the records with the store: every
    unpaid order was handled, no order that was paid in time was handled, every second handling
    comes from a lapsed lease, and the audit balances. If not, the exit code is 1.

    \b
    Example:
      bide demo
      bide demo --orders 20000 --seconds 10 --keep
    """  # fmt: skip
    out = Output(as_json)
    plan = Plan(orders, seconds, workers)
    folder = Path(tempfile.mkdtemp(prefix="bide-demo-"))
    try:
        stage = Stage(folder, plan)
        with watching(out, plan) as watch:
            stage.run(watch)
        with Queue(QUEUE, stage.url) as queue:
            audit = queue.audit()
        stage.records = Records.read(folder)
        checks = prove(stage.records, audit, orders)
        print_proof(out, stage, checks)
    finally:
        if keep:
            warn(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    if not all(check.holds for check in checks):
        ctx.exit(NOT_DONE)
