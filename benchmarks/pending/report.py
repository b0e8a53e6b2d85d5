"""The table and the charts of lateness against the number of pending messages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import Line, line_chart

__all__ = ["HEADINGS", "cells", "chart", "markdown", "write"]

HEADINGS = ("store", "pending", "", "p50", "p99", "p99.9", "max", "missing", "twice", "all within")
PERCENTILES = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "max"}
STATES = ("quiet", "primary killed")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row; lateness is in milliseconds."""
    head = (row["store"], f"{row['pending']:,}", row["state"])
    if "error" in row:
        return (*head, row["error"], "", "", "", "", "", "")
    return (
        *head,
        *(_milliseconds(row[name]) for name in PERCENTILES),
        f"{row['missing']:,} of {row['messages']:,}",
        f"{row['again']:,}",
        f"{row['seconds']:.1f} s" if "seconds" in row else "",
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table for the documentation."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def chart(store: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the chart of a store: solid while nothing happens, dashed with a killed primary."""
    numbers = sorted({row["pending"] for row in rows if row["state"] in STATES})

    def line(name: str, state: str, *, dashed: bool) -> Line:
        values = {row["pending"]: row.get(name) for row in rows if row["state"] == state}
        label = PERCENTILES[name] + (", killed" if dashed else "")
        return Line(label, [values.get(number) for number in numbers], dashed)

    lines = [line(name, STATES[0], dashed=False) for name in PERCENTILES]
    if any(row["state"] == STATES[1] for row in rows):
        lines += [line(name, STATES[1], dashed=True) for name in ("p50", "max")]
    places = [f"{number:,}" for number in numbers]
    return line_chart(f"Lateness on {store}", ("pending messages", "ms"), places, lines)


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Path]:
    """Write `pending.md`, and a chart for each store; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"pending.md": markdown(rows)}
    for store in dict.fromkeys(row["store"] for row in rows):
        of_store = [row for row in rows if row["store"] == store]
        texts[f"pending-{store}.svg"] = chart(store, of_store)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
