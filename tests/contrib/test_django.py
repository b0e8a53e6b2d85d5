"""The kit for Django, in a project of its own: one process has one set of settings."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer

PROJECT = Path(__file__).parent / "django_project"
BOUND = 300.0

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `manage.py` with arguments; return what it printed."""

    def manage(*arguments: str, code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments],
            cwd=PROJECT, env={**os.environ, "KIT_FOLDER": str(tmp_path), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BOUND, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    return manage


def test_the_cases_on_sqlite(run: Run) -> None:
    assert "OK" in run("test", "--pattern", "cases_*.py", "--noinput")


def test_the_cases_on_postgresql(run: Run, postgres: PostgresServer) -> None:
    told = run(
        "test", "--pattern", "cases_*.py", "--noinput", KIT_POSTGRES=str(postgres.folder)
    )  # fmt: skip
    assert "OK" in told


def test_no_migration_is_missing(run: Run) -> None:
    assert "No changes" in run("makemigrations", "--check")
