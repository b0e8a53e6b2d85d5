"""In a process whose threads are greenlets, as in gunicorn's gevent workers."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bide

PROGRAM = """
from gevent import monkey

monkey.patch_all()

import sys

import gevent

import bide


def handle():
    with queue.take() as delivery:
        return delivery.body


queue = bide.Queue("q", sys.argv[1])
waiting = gevent.spawn(handle)
puts = [gevent.spawn(queue.put, n, delay="1h") for n in range(20)]
gevent.joinall(puts, raise_error=True)
print("puts", queue.counts().sizes.delayed, flush=True)
print("took", waiting.get(), flush=True)
queue.close()
"""


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_greenlets_share_a_queue(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/bide.db"
    else:
        made: Callable[[], str] = request.getfixturevalue(f"{kind}_url")
        url = made()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "puts 20\n"
        with bide.Queue("q", url) as queue:
            queue.put("from outside")
            try:
                told, errors = child.communicate(timeout=60)
            finally:
                child.kill()
            assert (told, child.returncode) == ("took from outside\n", 0)
            assert "Traceback" not in errors
            assert queue.audit()
