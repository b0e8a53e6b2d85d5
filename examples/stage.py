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
def scene(**settings: str) -> Iterator[Path]:
    """Have the queue and the database in a folder of their own; return it.

    Args:
        settings: environment variables. Like those for the queue and the database they are there
            before the program is imported, which happens within the block.
    """
    with tempfile.TemporaryDirectory(prefix="bide-example-") as name:
        folder = Path(name)
        os.environ["BIDE_URL"] = f"sqlite:///{folder / 'bide.db'}"
        os.environ["DATABASE_URL"] = f"sqlite:///{folder / 'example.db'}"
        os.environ.update(settings)
        yield folder


@contextmanager
def worker(target: str, folder: Path) -> Iterator[None]:
    """Run `bide worker` beside the block."""
    ready, log = folder / "ready", folder / "log"
    command = [sys.executable, "-m", "bide", "worker", target, "--health-file", str(ready)]
    with log.open("w") as output:
        process = subprocess.Popen(command, stderr=output, stdout=output)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None)
        if process.poll() is not None:
            sys.exit(f"bide worker {target} has ended before it was at work; its log is above")
        yield
    except BaseException:
        sys.stderr.write(log.read_text())
        raise
    finally:
        process.terminate()
        process.wait(PATIENCE)


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
