"""`bide demo`: order timeouts with real processes, and a proof at the end."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

import click

from bide.cli import option
from bide.cli.demo.actors import QUEUE, DemoPlan
from bide.cli.demo.proof import DemoRecords, percentile, prove
from bide.cli.demo.stage import Stage, about, shares
from bide.cli.errors import NOT_DONE, raise_on_termination, require_packages
from bide.cli.output import Output, warn
from bide.queue.results import Audit
from bide.queue.sync import Queue


@click.command()
@option.count("--orders", least=50, most=200_000, default=5_000, help="The number of orders.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=8,
    show_default=True,
    metavar="S",
    help="How long orders arrive; the last ones time out 4 s later.",
)
@option.count("--workers", least=2, most=16, default=3, help="Workers; one of them is killed.")
@option.flag("--dashboard", help="Show the dashboard in a browser, and keep it open until Ctrl-C.")
@option.flag("--keep", help="Keep the folder with the store and the records.")
@option.output
@click.pass_context
def demo(
    ctx: click.Context,
    orders: int,
    seconds: float,
    workers: int,
    dashboard: bool,
    keep: bool,
    as_json: bool,
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
      bide demo --dashboard --seconds 60
    """
    out = Output(as_json)
    folder = Path(tempfile.mkdtemp(prefix="bide-demo-"))
    try:
        stage = Stage(folder, DemoPlan(orders, seconds, workers))
        with raise_on_termination(), _dashboard(out, stage.url) if dashboard else nullcontext():
            with closing(stage.run()) as looks:
                _watch(out, stage, looks)
            with Queue(QUEUE, stage.url) as queue:
                audit = queue.audit()
            proved = _print_proof(out, stage, audit)
    finally:
        if keep:
            warn(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    if not proved:
        ctx.exit(NOT_DONE)


@contextmanager
def _dashboard(out: Output, store: str) -> Iterator[None]:
    """Run `bide dashboard` in a process, until Ctrl-C or SIGTERM after the block.

    Raises:
        click.ClickException: it did not start; it has printed why.
    """
    announce = warn if out.as_json else out.text  # stdout is for JSON alone
    require_packages("bide demo --dashboard", "jinja2", "h11", "httptools", extra="dashboard")
    with Queue(QUEUE, store) as queue:
        queue.counts()  # makes the store
    with subprocess.Popen(
        [sys.executable, "-m", "bide", "dashboard", store, "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            url = words[-1] if words else ""  # the line is "... is at http://..."
            if "://" not in url:
                raise click.ClickException("the dashboard did not start")
            announce(f"the dashboard is at {url}")
            yield
            announce(f"the dashboard stays open at {url}; Ctrl-C ends it")
            with suppress(KeyboardInterrupt, SystemExit):
                process.wait()
        finally:
            process.terminate()


def _watch(out: Output, stage: Stage, looks: Iterable[None]) -> None:
    """Show the stage at each look: as a picture, as lines, or with JSON not at all.

    Args:
        out: where to show it.
        stage: the stage.
        looks: yields after each look, until the run is over.
    """
    if out.terminal:
        from bide.cli.demo.picture import draw  # here: it takes long to import

        draw(out, stage, looks)
        return
    if out.as_json:
        for _ in looks:
            pass
        return
    out.text(f"bide demo: {about(stage.plan)}")
    printed_events = 0
    last_second = 0
    for _ in looks:
        for moment, text in stage.events[printed_events:]:
            out.text(f"{moment:5.1f} s  {text}")
        printed_events = len(stage.events)
        if stage.elapsed >= last_second + 1:  # the counts once a second
            last_second = int(stage.elapsed)
            counts = "   ".join(f"{name} {count:,}" for name, count, _ in shares(stage))
            out.text(f"{stage.elapsed:5.1f} s  {counts}")


def _print_proof(out: Output, stage: Stage, audit: Audit) -> bool:
    """Print what was checked and how late the orders were; return whether all checks hold."""
    records = DemoRecords.read(stage.folder)
    checks = prove(records, audit, stage.plan.orders)
    # A later attempt is late by the lease of the one before.
    late = sorted(handling.late for handling in records.handled if handling.attempt == 1)
    figures = {"p50": percentile(late, 0.5), "p99": percentile(late, 0.99), "max": max([0, *late])}
    holds = not any(check.problems for check in checks)
    if out.as_json:
        facts = [{**check._asdict(), "holds": not check.problems} for check in checks]
        out.json(
            {
                "proved": holds,
                "checks": facts,
                "lateness": figures,
                "killed_holding": stage.lost,
                "took": round(stage.elapsed * 1000),
            }
        )
        return holds
    for check in checks:
        mark = ("ok   ", "green") if not check.problems else ("FAIL ", "bold red")
        out.text(mark, check.claim, (f": {check.detail}" if check.detail else "", "dim"))
        for problem in check.problems:
            out.text(("     " + problem, "red"))
    lateness = "   ".join(f"{name} {ms:,} ms" for name, ms in figures.items())
    out.text((f"lateness  {lateness}", "bold"))
    verdict = f"proved in {stage.elapsed:.1f} s, from the records of each process"
    if not holds:
        verdict = "NOT proved: please report it, with the folder that --keep keeps"
    out.text((verdict, "bold green" if holds else "bold red"))
    return holds
