"""Where an example plays: a folder that is gone afterwards, and a real worker at work in it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 30.0


@contextmanager
def at_work(target: str, **settings: str) -> Iterator[Path]:
    """Run `bide worker` beside the block, on a queue and a database in a folder of their own.

    Args:
        target: the app, as `bide worker` takes it.
        settings: environment variables for this process and the worker; set before the program
            is imported, so that both go by them.
    """
    with tempfile.TemporaryDirectory(prefix="bide-example-") as name:
        folder = Path(name)
        os.environ["BIDE_URL"] = f"sqlite:///{folder / 'bide.db'}"
        os.environ["DATABASE_URL"] = f"sqlite:///{folder / 'example.db'}"
        os.environ.update(settings)
        ready = folder / "ready"
        command = [sys.executable, "-m", "bide", "worker", target, "--health-file", str(ready)]
        with (folder / "log").open("w") as log:
            worker = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            wait_until(ready.exists)
            yield folder
        except BaseException:
            sys.stderr.write((folder / "log").read_text())
            raise
        finally:
            worker.terminate()
            worker.wait(PATIENCE)


def wait_until(come_to_pass: Callable[[], object]) -> None:
    """Wait until something has come to pass.

    Raises:
        TimeoutError: it has not within 30 seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while not come_to_pass():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to pass")
        time.sleep(0.02)
