"""What `bide demo` draws on a terminal."""

from collections.abc import Iterable

from rich.live import Live
from rich.text import Text

from bide.cli.demo.stage import Stage, about, shares
from bide.cli.output import Output

WIDTH = 76
"""The maximum length of the stripe of all orders."""


def draw(out: Output, stage: Stage, looks: Iterable[None]) -> None:
    """Draw the stage at each look."""
    with Live(console=out.console, refresh_per_second=10) as live:
        for _ in looks:
            live.update(_picture(stage, max(24, min(WIDTH, out.console.width - 4))))


def _picture(stage: Stage, width: int) -> Text:
    """Return the stage as it is now, with all orders as one stripe."""
    numbers, stripe = Text("  "), Text("  ")
    for name, count, style in shares(stage):
        numbers.append("■ ", style).append(f"{name} ").append(f"{count:,}   ", "bold")
        stripe.append("█" * round(count / stage.plan.orders * width), style)
    stripe.append("░" * (width - len(stripe)), "bright_black")
    numbers.append(f"{stage.elapsed:4.1f} s", "dim")
    events = [Text(f"  {moment:4.1f} s  {text}", "dim") for moment, text in stage.events]
    heading = Text.assemble(("bide demo", "bold"), f"  {about(stage.plan)}")
    return Text("\n").join([Text(), heading, Text(), stripe, numbers, Text(), *events, Text()])
