"""The dashboard beside the demo: a process of its own, until the user ends it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bide.cli.errors import CommandError

LINK = "http://127.0.0.1:"


@contextmanager
def open_dashboard(store: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `bide dashboard`; provide its URL and its process, which ends with the block.

    Args:
        store: the URL of the store, which exists.

    Raises:
        CommandError: the dashboard did not start; it has printed why.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "dashboard", store, "--port", "0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if LINK not in line:
            raise CommandError("the dashboard did not start")
        yield line.split()[-1], process
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
