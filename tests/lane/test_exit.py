"""A program may end without closing anything."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

USES = {
    "put": "queue.put(1)",
    "through the lane": "queue.put(1); queue.claim()",
    "looked": "queue.put(1); queue.counts()",
    "waited": "queue.claim(wait=0.01)",
    "a claim still waits": (
        "import threading\n"
        "thread = threading.Thread(target=lambda: queue.claim(wait=600), daemon=True)\n"
        "thread.start()\n"
        "while not queue._lane._waiting.queues: pass"
    ),
    "an error": "queue.put(1); queue.claim(); raise SystemExit(7)",
}


@pytest.mark.parametrize("url", ["memory://", "sqlite:///bide.db"])
@pytest.mark.parametrize("use", USES)
def test_a_program_that_closes_nothing_ends_at_once_and_quietly(
    tmp_path: Path, url: str, use: str
) -> None:
    program = f"import bide\nqueue = bide.Queue('orders', {url!r})\n{USES[use]}"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("", "")
    assert ended.returncode == (7 if use == "an error" else 0)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///bide.db"])
def test_a_loop_that_ends_before_its_queue_is_closed_ends_quietly(tmp_path: Path, url: str) -> None:
    program = f"""
import asyncio, bide
async def main():
    queue = bide.AsyncQueue("orders", {url!r})
    task = asyncio.create_task(queue.claim(wait=600))
    await queue.put(1, delay=60)
    await queue.counts()
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
