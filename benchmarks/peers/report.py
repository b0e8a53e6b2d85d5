"""The table of the peers, what each does better than bide, and a chart for each column."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts import Bar, bar_chart
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.works import WORKS, Cell, number_text

__all__ = ["Row", "better", "markdown", "reasons", "scaled", "write"]

CLEAR = 1.1
"""Times as good: what is less is noise."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        peer: who is measured.
        store: on which store.
        is_tuned: whether with its tuned settings.
        cells: by the name of the work, what was measured.
        problem: why nothing was.
    """

    peer: Peer
    store: str
    is_tuned: bool
    cells: dict[str, Cell]
    problem: str = ""

    @property
    def name(self) -> str:
        """What stands first in the row."""
        name = self.peer.title
        if len(self.peer.stores) > 1:
            name += f", {self.store}"
        return f"{name}, tuned" if self.is_tuned else name

    @property
    def is_bide(self) -> bool:
        """Whether this is bide itself."""
        return self.peer.name == "bide"

    def text(self, work: str) -> str:
        """Return the text of a cell."""
        if self.problem:
            return "not installed"
        return self.cells[work].text if work in self.cells else ""

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        cells = {work: asdict(cell) | {"text": cell.text} for work, cell in self.cells.items()}
        return {"row": self.name, "versions": self.peer.versions, "problem": self.problem} | cells


def markdown(rows: Sequence[Row], works: Sequence[str], scale: float = 1) -> str:
    """Return the table and the notes below it, for the documentation."""
    headings = ("", *(WORKS[work].heading for work in works))
    lines = [headings, tuple("---" for _ in headings)]
    lines += [(row.name, *(row.text(work) for work in works)) for row in rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    lines_below = (*scaled(scale), *_versions(rows), *better(rows), *reasons(rows))
    return f"{table}\n" + "".join(f"- {line}\n" for line in lines_below)


def scaled(scale: float) -> list[str]:
    """Return what must be known of a table whose numbers of messages are others."""
    return [] if scale == 1 else [f"All numbers of messages are times {scale:g}."]


def _versions(rows: Sequence[Row]) -> list[str]:
    """Return which versions were measured, tuned how, and what is peculiar to each."""
    lines: dict[str, str] = {}
    for row in rows:
        peer = row.peer
        if row.is_bide:
            continue
        parts = [f"{peer.title}: {peer.versions}"]
        if peer.tuned:
            parts.append(f"tuned: {peer.tuning}")
        if peer.remark:
            parts.append(peer.remark)
        lines[peer.name] = "; ".join(parts) + "."
    return list(lines.values())


def better(rows: Sequence[Row]) -> list[str]:
    """Return what each peer does clearly better than bide on the same store.

    A peer on a store that bide has not is held against bide's best row.
    """
    lines: list[str] = []
    ours = [row for row in rows if row.is_bide]
    for row in rows:
        beside = [mine for mine in ours if mine.store == row.store] or ours
        if row.is_bide:
            continue
        wins: list[str] = []
        for name, cell in row.cells.items():
            values = [v for mine in beside if (v := _value(mine, name)) is not None]
            if cell.value is None or not values:
                continue
            work = WORKS[name]
            best = max(values) if work.more_is_better else min(values)
            if _is_clearly_better(cell.value, best, more=work.more_is_better):
                theirs = f"{number_text(cell.value)} {work.unit}"
                wins.append(f"{work.heading} ({theirs}, bide {number_text(best)})")
        if wins:
            lines.append(f"{row.name} does better than bide: {'; '.join(wins)}.")
    return lines


def _value(row: Row, work: str) -> float | None:
    return row.cells[work].value if work in row.cells else None


def _is_clearly_better(theirs: float, ours: float, *, more: bool) -> bool:
    return theirs > ours * CLEAR if more else theirs * CLEAR < ours


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return why cells have no figures."""
    lines = [f"{row.name}: {row.problem}." for row in rows if row.problem]
    for row in rows:
        lines += [
            f"{row.name}, {WORKS[name].heading}: {cell.state}: {cell.reason}."
            for name, cell in row.cells.items()
            if cell.reason
        ]
    return lines


def write(folder: Path, rows: Sequence[Row], works: Sequence[str], scale: float = 1) -> list[Path]:
    """Write `peers.md`, and a chart for each column; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"peers.md": markdown(rows, works, scale)}
    for work in works:
        bars = [
            Bar(row.name, row.cells[work].value if work in row.cells else None, row.text(work))
            for row in rows
            if row.problem or work in row.cells
        ]
        texts[f"peers-{work}.svg"] = bar_chart(f"{WORKS[work].heading}, {_unit(work)}", bars)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _unit(work: str) -> str:
    return f"{WORKS[work].key} in {WORKS[work].unit}".replace("_", " ")
