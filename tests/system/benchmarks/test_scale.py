"""`python -m benchmarks scale`: what a message costs while many are pending."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import one_in

ROOT = Path(__file__).parents[3]


@pytest.mark.full
@pytest.mark.process
@pytest.mark.parametrize("store", one_in(3, ["sqlite", "postgres", "redis"]))
def test_each_store_tells_its_bytes_and_times(store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "scale", "--only", store, "--json"],
        cwd=ROOT,
        env={**os.environ, "BIDE_PENDING": "2000"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    begin = f"{store}, 2,000 pending: "
    values = {figure["name"].removeprefix(begin): figure["value"] for figure in figures}
    assert len(values) == 11
    assert all(value > 0 for value in values.values())
    # A body has 256 bytes; the figures are those of one message, not of all.
    assert 256 < values["size per message"] < 2_560
    assert 256 < values["written per message put"] < 2_560
    assert "forecast of a week by the hour" in values
