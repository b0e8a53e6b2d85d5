"""`python -m benchmarks pending`: lateness against the number of pending messages."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pending.measuring import measure_burst, measure_pending
from benchmarks.pending.report import cells, chart, markdown, write


def row(store: str, pending: int, state: str, late: float) -> dict[str, Any]:
    figures = {"p50": late, "p99": late * 2, "p999": late * 3, "max": late * 100}
    counts = {"messages": 4_000, "missing": 0, "again": 1}
    return {"store": store, "pending": pending, "state": state, **figures, **counts}


ROWS = [
    row("redis", 1_000, "quiet", 1.0),
    row("redis", 1_000, "primary killed", 2.0),
    row("redis", 100_000, "quiet", 1.5),
    {"store": "redis", "pending": 100_000, "state": "primary killed", "error": "nothing"},
    row("redis", 500_000, "due in one second", 900.0) | {"seconds": 5.25},
]


def test_a_row_has_the_percentiles_and_what_is_missing() -> None:
    assert cells(ROWS[1]) == (
        *("redis", "1,000", "primary killed"),
        *("2.0 ms", "4.0 ms", "6.0 ms", "200 ms"),
        *("0 of 4,000", "1", ""),
    )
    assert cells(ROWS[4])[-1] == "5.2 s"


def test_a_row_that_was_not_measured_says_why() -> None:
    lines = markdown(ROWS).splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert len({line.count("|") for line in lines}) == 1
    assert lines[5] == "| redis | 100,000 | primary killed | nothing |  |  |  |  |  |  |"


def test_a_chart_has_a_line_for_each_percentile() -> None:
    tree = ET.fromstring(chart("redis", ROWS))
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "Lateness on redis" in texts
    assert {"1,000", "100,000", "p50", "p99", "p99.9", "max", "max, killed"} <= set(texts)
    assert "500,000" not in texts  # the burst is no place of the x axis


def test_the_files_are_written(tmp_path: Path) -> None:
    files = write(tmp_path / "made", ROWS)
    assert [path.name for path in files] == ["pending.md", "pending-redis.svg"]
    assert all(path.read_text() for path in files)


@pytest.mark.full
@pytest.mark.process
def test_all_that_is_put_is_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (quiet,) = measure_pending("sqlite", 10, 0.1)
    assert (quiet["state"], quiet["messages"], quiet["missing"]) == ("quiet", 20, 0)
    assert 0 <= quiet["p50"] <= quiet["max"]


@pytest.mark.full
@pytest.mark.process
def test_a_burst_is_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    burst = measure_burst("sqlite", 50)
    assert (burst["messages"], burst["missing"]) == (50, 0)
    assert burst["seconds"] > 0.9
