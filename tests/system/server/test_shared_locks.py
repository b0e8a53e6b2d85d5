"""The locks of the files that the processes of a server share."""

import subprocess
import sys

import pytest

from bide.server.shared_state import make_file, take_lock
from tests.unit.lane.commands import PATIENCE, spawn

OTHER = """
import fcntl, sys, threading, time
first, second = map(int, sys.argv[1:])
fcntl.lockf(second, fcntl.LOCK_EX)
waits = threading.Thread(target=fcntl.lockf, args=(first, fcntl.LOCK_EX), daemon=True)
waits.start()
time.sleep(0.2)  # it waits in the system
print("it waits", flush=True)
sys.stdin.readline()
fcntl.lockf(second, fcntl.LOCK_UN)
sys.stdin.readline()
"""
"""A process that holds a file, while another thread of it waits for the file of the test."""


@pytest.mark.process
def test_a_deadlock_that_is_none_is_waited_out() -> None:
    first, second = make_file(), make_file()
    take_lock(first)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(first), str(second)],
        pass_fds=(first, second),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "it waits\n"
        waiting = spawn(lambda: take_lock(second))
        other.stdin.write("let go\n")
        other.stdin.flush()
        waiting.result(PATIENCE)
        other.stdin.close()
