"""What the demo shows: a live table on a terminal, lines of progress in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bide.cli.demo.plan import Plan
from bide.cli.demo.proof import Check, percentile
from bide.cli.demo.run import Stage
from bide.cli.forecast import bar
from bide.cli.output import Output

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

__all__ = ["print_proof", "watching"]

WIDTH = 76
STEPS = (1, 2, 5, 10, 20, 50, 100)
"""The bounds of the lateness chart's bars, in milliseconds."""


def about(plan: Plan) -> str:
    """Return what the demo is about, in a sentence."""
    span = f"{plan.shortest:.2g} to {plan.longest:.2g} s"
    return f"{plan.orders:,} orders, each times out after {span} unless it is paid"


@contextmanager
def watching(out: Output, plan: Plan) -> Iterator[Callable[[Stage], None]]:
    """Return what shows the stage, each time it is called."""
    if out.as_json:
        yield lambda stage: None
    elif not out.terminal:
        out.row(f"bide demo: {about(plan)}")
        out.flush()
        yield _Lines(out)
    else:
        from rich.live import Live

        with Live(console=out.console, refresh_per_second=10) as live:
            yield lambda stage: live.update(picture(stage))


class _Lines:
    """Prints a line a second, and each event."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._second = 0
        self._told = 0

    def __call__(self, stage: Stage) -> None:
        for moment, text in stage.events[self._told :]:
            self._out.row(f"{moment:5.1f} s  {text}")
        self._told = len(stage.events)
        if stage.elapsed >= self._second + 1:
            self._second = int(stage.elapsed)
            told = (f"{name} {count:,}" for name, count, _ in shares(stage))
            self._out.row(f"{stage.elapsed:5.1f} s  " + "   ".join(told))
        self._out.flush()


def shares(stage: Stage) -> list[tuple[str, int, str]]:
    """Return where the orders are: name, how many, style."""
    sizes = stage.counts.sizes if stage.counts is not None else None
    flow = stage.counts.flow if stage.counts is not None else None
    return [
        ("paid", flow.cancelled if flow else 0, "green"),
        ("timed out", flow.acked if flow else 0, "red"),
        ("in hands", sizes.leased if sizes else 0, "yellow"),
        ("waiting", sizes.delayed + sizes.ready if sizes else 0, "cyan"),
    ]


def picture(stage: Stage) -> "RenderableType":
    """Return the stage as it is now."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    heading = Text.assemble(("bide demo", "bold"), f"  {about(stage.plan)}")
    numbers = Text("  ")
    for name, count, style in shares(stage):
        numbers.append_text(Text.assemble(("■ ", style), f"{name} ", (f"{count:,}", "bold"), "   "))
    numbers.append(f"{stage.elapsed:4.1f} s", "dim")
    workers = Table.grid(padding=(0, 2))
    workers.add_column(min_width=18)
    workers.add_column(justify="right")
    workers.add_column(justify="right")
    workers.add_column()
    for worker in stage.workers:
        late = sorted(worker.lateness)
        state = Text("✗ killed -9", "bold red") if worker.killed else Text("● works", "green")
        if worker.killed and stage.holding.get(worker.name):
            state.append(f", still holds {stage.holding[worker.name]}", "red")
        workers.add_row(
            Text(f"  {worker.role}", "strike dim" if worker.killed else ""),
            Text.assemble((f"{worker.handled:,}", "bold"), (" handled", "dim")),
            Text.assemble((f"p50 {percentile(late, 0.5)} ms", "" if late else "dim")),
            state,
        )
    events = [Text(f"  {moment:4.1f} s  {text}", "dim") for moment, text in stage.events]
    return Group("", heading, "", _stripe(stage), numbers, "", workers, "", *events, "")


def _stripe(stage: Stage) -> "Text":
    """Return all orders as one stripe: what has become of each part."""
    from rich.text import Text

    stripe, taken, total = Text("  "), 0, 0
    for _, count, style in shares(stage):
        total += count
        end = round(total / stage.plan.orders * WIDTH)
        stripe.append("█" * (end - taken), style)
        taken = max(taken, end)
    return stripe.append("░" * (WIDTH - taken), "bright_black")


def print_proof(out: Output, stage: Stage, checks: list[Check]) -> None:
    """Print what was checked, how late the orders were, and the verdict."""
    late = stage.records.first_lateness
    figures = {"p50": percentile(late, 0.5), "p99": percentile(late, 0.99), "max": max([0, *late])}
    holds = all(check.holds for check in checks)
    verdict = f"proved in {stage.elapsed:.1f} s, from what each process wrote down for itself"
    if not holds:
        verdict = "NOT proved: please report it, with the folder that --keep keeps"
    if out.as_json:
        facts = [{"claim": c.claim, "holds": c.holds, "problems": c.problems} for c in checks]
        out.json({
            "proved": holds, "checks": facts, "lateness_ms": figures, "killed_holding": stage.lost,
            "seconds": round(stage.elapsed, 3),
        })  # fmt: skip
        return
    told = "lateness  " + "   ".join(f"{name} {ms:,} ms" for name, ms in figures.items())
    if not out.terminal:
        for check in checks:
            text = f"{check.claim}: {check.detail}" if check.detail else check.claim
            out.row("ok  " if check.holds else "FAIL", text, *check.problems)
        out.row(told)
        out.row(verdict)
        return
    for check in checks:
        mark = ("  ✓ ", "green") if check.holds else ("  ✗ ", "bold red")
        out.text(mark, f"{check.claim:{WIDTH - 24}}", (f"  {check.detail}".rstrip(), "dim"))
        for problem in check.problems:
            out.text((f"    {problem}", "red"))
    out.text("")
    _chart(out, late)
    out.text(("  " + told, "bold"), ("   (from due to handled, redeliveries apart)", "dim"))
    out.text("")
    out.text(("  ✓ " if holds else "  ✗ ", "green" if holds else "red"), (verdict, "bold"))


def _chart(out: Output, late: list[int]) -> None:
    """Print how many orders were how late."""
    bounds = [*STEPS, max([STEPS[-1], *late]) + 1]
    counts = [0] * len(bounds)
    for ms in late:
        counts[next(place for place, bound in enumerate(bounds) if ms <= bound)] += 1
    last = max((place for place, count in enumerate(counts) if count), default=0)
    for place in range(last + 1):
        label = f"≤ {bounds[place]} ms" if place < len(STEPS) else f"> {STEPS[-1]} ms"
        drawn = bar(counts[place], max(counts), WIDTH - 22)
        out.text((f"  {label:>8} ", "dim"), (drawn, "cyan"), f" {counts[place]:,}")
