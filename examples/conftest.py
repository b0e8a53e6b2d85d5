"""Fixtures for the tests of the examples."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Play = Callable[[str], str]


@pytest.fixture
def play() -> Play:
    """Run `python -m examples.NAME`, as its README says, and return its output."""

    def run(name: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", f"examples.{name}"],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
