"""`bide prove`: kill processes that use a store, and check what it has confirmed."""

import random
import shutil
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path

import click

from bide.cli import option
from bide.cli.errors import NOT_DONE, raise_on_termination, usage_error
from bide.cli.output import Bar, Output, Part, grid, warn
from bide.cli.store import refuse_memory
from bide.engines.registry import named_url, opener
from bide.proving.page import page_of
from bide.proving.plan import QUEUE_PREFIX, ProvingPlan
from bide.proving.proof import Proof
from bide.proving.run import prove as carry_out

SECONDS = 30.0
"""How long it takes unless the command line says when it ends."""

STORIES_SHOWN = 5
"""How many violations are printed with their story; the page and JSON have more."""

UNITS = {"k": 1_000, "M": 1_000_000}


def read_count(text: str) -> int:
    """Read a number of messages: 5000, 500k or 1M.

    Example:
        >>> read_count("500k"), read_count("1M"), read_count("7")
        (500000, 1000000, 7)

    Raises:
        click.BadParameter: it is none.
    """
    factor = UNITS.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isascii() or not digits.isdecimal():
        raise click.BadParameter(f"{text!r} is not a number of messages, such as 5000, 500k or 1M")
    return int(digits) * factor


@click.command()
@click.argument("store", required=False, metavar="[URL]")
@option.time("--for", "How long to run; 30s unless --kills is given.")
@option.count("--kills", help="End after this many kills (and one run of the fault).")
@option.count(
    "--processes", least=2, most=64, default=4, help="Processes that use the store at a time."
)
@option.time("--kill-every", "The average time between two kills.", default="1s")
@click.option(
    "--pending",
    type=read_count,
    default="0",
    metavar="N",
    help="First put this many messages that are due later, such as 1M.",
)
@option.text("--fault", "CMD", "A command for the shell: your own fault, run again and again.")
@option.time("--every", "How often the fault is run.", default="10s")
@option.count("--seed", least=0, help="Seeds what the processes do and which one is killed.")
@option.flag("--keep", help="Keep the folder with the journals of the processes.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the result as a page of its own.",
)
@option.url
@option.output
def prove(
    store: str | None,
    url: str | None,
    kills: int | None,
    processes: int,
    kill_every: float,
    pending: int,
    fault: str | None,
    every: float,
    seed: int | None,
    keep: bool,
    page: Path | None,
    as_json: bool,
    **options: float | None,
) -> None:
    """Kill processes that use a store, and prove that it keeps what it confirms.

    Several processes put, cancel, reschedule, claim and ack in a queue of their own, which is
    deleted at the end. They are killed with -9 at random and replaced. Each writes into a journal
    what it tried and what the store answered. At the end all journals are checked: nothing that was
    confirmed is lost, nothing was early, and nothing came twice without a reason.

    With --fault it also runs your own fault meanwhile: restart the server, cut its network, promote
    a replica. Beside the result it shows what could be lost with the settings of the store, as bide
    doctor finds it. The exit code is 1 if a promise was broken; then the journals are kept. In a
    pipe, each line is: name, value; then what was broken.

    \b
    Example:
      bide prove redis://cache:6379/0 --for 5m --pending 1M
      bide prove postgresql://db/shop --fault 'docker restart db' --every 30s
      bide prove --kills 50 --html proof.html
    """
    out = Output(as_json)
    store_url = named_url(store, url)
    opener(store_url)  # says what is wrong with the URL
    refuse_memory(store_url, "name a store that processes share, such as sqlite:///bide.db")
    seconds = options["for"]
    if seconds is None and kills is None:
        seconds = SECONDS
    if fault is not None and seconds is not None and every >= seconds:
        raise usage_error("--every is how often the fault is run: it must be shorter than --for")
    plan = ProvingPlan(
        url=store_url,
        queue=f"{QUEUE_PREFIX}{uuid.uuid4().hex[:12]}",
        processes=processes,
        seconds=seconds,
        kills=kills,
        kill_every=kill_every,
        pending=pending,
        fault=fault,
        every=every,
        seed=random.randrange(1 << 32) if seed is None else seed,
    )
    folder = Path(tempfile.mkdtemp(prefix="bide-prove-"))
    proof: Proof | None = None
    try:
        with raise_on_termination():
            proof = carry_out(plan, folder, Bar, warn)
        _print(out, proof)
        if page is not None:
            page.write_text(page_of(proof, f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"), "utf-8")
    finally:
        if keep or (proof is not None and not proof):
            warn(f"the journals are in {folder}")
        else:
            shutil.rmtree(folder)
    if not proof:
        click.get_current_context().exit(NOT_DONE)


def _print(out: Output, proof: Proof) -> None:
    """Print the result."""
    if out.as_json:
        out.json(proof.as_json())
    elif out.terminal:
        _print_table(out, proof)
    else:
        _print_lines(out, proof)


def _print_lines(out: Output, proof: Proof) -> None:
    """Print the result for a pipe: a name and a value in each line, then what was broken."""
    facts = {**proof.facts(), "proved": "yes" if proof else "no"}
    facts |= {f"late_{name}": ms for name, ms in proof.lateness().items()}
    facts |= {"per_second": round(proof.per_second(), 1), "seed": proof.seed}
    for name, value in facts.items():
        out.row(name, value)
    for finding in proof.findings:
        out.row(finding.level, finding.what, finding.loss, finding.fix)
    for violation in proof.examples:
        out.row("broken", violation.kind, violation.id or "", violation.what)
        for line in violation.story:
            out.row("story", violation.id or "", line)


def _print_table(out: Output, proof: Proof) -> None:
    """Print the result for people: one table, the settings beside it, and some stories."""
    rows: list[list[Part]] = [
        [(name, "dim"), (value, "bold red" if is_wrong else "bold")]
        for name, value, is_wrong in proof.table()
    ]
    marks = {"danger": "red", "warning": "yellow"}
    rows += [
        [(finding.level, marks[finding.level]), f"{finding.what}: {finding.loss}"]
        for finding in proof.findings
    ]
    if proof.unexamined:
        rows.append([("settings", "dim"), proof.unexamined])
    elif not proof.findings:
        rows.append([("settings", "dim"), "bide doctor has found nothing"])
    out.console.print(grid(rows, "ll"))
    for violation in proof.examples[:STORIES_SHOWN]:
        out.text(("✗ ", "red"), (violation.what, "bold"))
        for line in violation.story:
            out.text((f"    {line}", "dim"))
    if (untold := proof.untold + len(proof.examples[STORIES_SHOWN:])) > 0:
        out.text((f"and {untold:,} more; --json and --html tell some of them", "dim"))
    mark: Part = ("✓ ", "green") if proof else ("✗ ", "red")
    out.text(mark, (proof.verdict(), "bold"))
