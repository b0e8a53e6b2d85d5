"""PID 1 of a container reaps what handlers have started and left alone."""

import subprocess
import sys

import pytest

CODE = """
import ctypes, os
from bide.worker.process.orphans import PAUSE, Orphans, _dead_children

PR_SET_CHILD_SUBREAPER = 36  # orphans become children of this process, as of PID 1
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
reading, writing = os.pipe()
parent = os.fork()
if not parent:
    os.fork()
    os._exit(0)  # both: the second one is an orphan if the first has ended, else a grandchild
os.close(writing)
os.waitpid(parent, 0)
os.read(reading, 1)  # ends with the orphan, which has the other end
orphans = Orphans()
while not _dead_children():
    os.sched_yield()
(dead,) = _dead_children()
orphans.reap(0.0)
assert _dead_children() == {dead}, "the first look only remembers it"
orphans.reap(PAUSE / 2)
assert _dead_children() == {dead}, "it was too early to look"
orphans.reap(PAUSE)
assert _dead_children() == set()
orphans.reap(2 * PAUSE)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers and /proc")
def test_an_orphan_is_reaped_at_the_second_look() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
