"""The first program of the README, with a worker process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT, blocks

BOUND = 120.0


@pytest.mark.process
def test_the_first_program_puts_cancels_and_runs_in_a_worker(tmp_path: Path) -> None:
    block = next(block for block in blocks((ROOT / "README.md").read_text()) if "App" in block.text)
    (tmp_path / "shop.py").write_text(block.text.replace("30m", "1ms"))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("BIDE_")}
    environment["PYTHONUNBUFFERED"] = "1"
    program = subprocess.run(
        [sys.executable, "-W", "error", "shop.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    )
    assert program.stdout == "order 42 is paid\n"
    with subprocess.Popen(
        [sys.executable, "-m", "bide", "worker", "shop:app"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "order 41 has timed out\n"
        finally:
            worker.terminate()
        assert worker.wait(BOUND) == 0
        assert worker.stdout.read() == ""
