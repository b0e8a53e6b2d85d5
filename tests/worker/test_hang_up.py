"""A worker whose terminal is closed ends as by Ctrl-C; elsewhere SIGHUP loads the new code."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.worker.processes import APP, BOUND, counts, put, said, wait_for

TAKE_TERMINAL = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
WORK = 'import os, sys; os.execv(sys.executable, [sys.executable, "-m", "bide", *sys.argv[1:]])'
IGNORE = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "


@contextmanager
def in_terminal(folder: Path, before: str = "") -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run `bide worker` with a terminal as stdin; provide it, and the other end of the terminal."""
    (folder / "jobs.py").write_text(APP)
    environment = {**os.environ, "BIDE_URL": f"sqlite:///{folder / 'bide.db'}"}
    ours, theirs = pty.openpty()
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", before + WORK, "worker", "jobs:app"],
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_a_closed_terminal_lets_handlers_finish_and_ends_the_worker(tmp_path: Path) -> None:
    put(tmp_path, sleep=1)
    with in_terminal(tmp_path, TAKE_TERMINAL) as (process, terminal):
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        os.close(terminal)
        assert process.wait(BOUND) == 0
    assert said(tmp_path, "VERSION ended")()
    assert said(tmp_path, "the terminal was closed (SIGHUP): stopping")()
    assert counts(tmp_path).flow.acked == 1


@pytest.mark.process
def test_the_second_signal_of_a_closed_terminal_hurries_nobody(tmp_path: Path) -> None:
    put(tmp_path, sleep=1)
    with in_terminal(tmp_path) as (process, terminal):
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "stopping"), tmp_path)
        process.send_signal(signal.SIGHUP)
        assert process.wait(BOUND) == 0
        os.close(terminal)
    assert said(tmp_path, "VERSION ended")()


@pytest.mark.process
def test_a_worker_that_ignores_closed_terminals_reloads(tmp_path: Path) -> None:
    with in_terminal(tmp_path, IGNORE) as (process, terminal):
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND) == 0
        os.close(terminal)
