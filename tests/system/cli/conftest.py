"""How the tests call the command line: in this process, as a process, and on a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import bide
from bide.cli import main

Bide = Callable[..., Result]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]
Terminal = Callable[..., tuple[str, int]]

BOUND = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def orders(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url) as queue:
        yield queue


@pytest.fixture
def run(url: str) -> Bide:
    """Call `bide` in this process: `run("put", "orders", "1").output`."""

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        env = {"BIDE_URL": url, "COLUMNS": "100"}
        return CliRunner().invoke(main, arguments, stdin, env, prog_name="bide")

    return call


def environment(url: str, **more: str) -> dict[str, str]:
    unwanted = {
        "NO_COLOR",
        "FORCE_COLOR",
        "COLUMNS",
        "LINES",
        "BIDE_URL",
        "TERM",
        "PYTHONUNBUFFERED",  # users do not set it: output is written at the end
    }
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**kept, "PATH": path, "BIDE_URL": url, "TERM": "xterm-256color", **more}


@pytest.fixture
def shell(url: str, tmp_path: Path) -> Shell:
    """Run a line in a shell, where `bide` is on the path."""

    def call(
        line: str, stdin: str | None = None, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", line],
            env=environment(url, **more),
            cwd=tmp_path,
            text=True,
            input=stdin,
            capture_output=True,
            timeout=BOUND,
            check=False,
        )

    return call


@pytest.fixture
def terminal(url: str, tmp_path: Path) -> Terminal:
    """Run `bide` on a terminal of 100 columns; return what is on it, and the exit code."""

    def call(*arguments: str, typed: str = "", **more: str) -> tuple[str, int]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "bide", *arguments],
            env=environment(url, **{"COLUMNS": "100", "LINES": "40", **more}),
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        if typed:
            os.write(ours, typed.encode())
        seen, deadline = b"", time.monotonic() + BOUND
        try:
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 0.05)[0]:
                    continue
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # Linux says so when the other end is closed
                    break
                if not chunk:
                    break
                seen += chunk
            return seen.decode(), process.wait(BOUND)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    return call
