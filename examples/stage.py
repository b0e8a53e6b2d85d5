"""The environment of an example: a temporary directory and a real worker."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0


@contextmanager
def scene(**settings: str) -> Iterator[Path]:
    """Keep the queue and the database in a temporary directory; yield the directory.

    Args:
        settings: further environment variables. All are set before the block imports the program.
    """
    with tempfile.TemporaryDirectory(prefix="bide-example-") as name:
        folder = Path(name)
        os.environ["BIDE_URL"] = f"sqlite:///{folder / 'bide.db'}"
        os.environ["DATABASE_URL"] = f"sqlite:///{folder / 'example.db'}"
        os.environ.update(settings)
        yield folder


@contextmanager
def worker(target: str, folder: Path) -> Iterator[None]:
    """Run `bide worker` during the block."""
    ready, log = folder / "ready", folder / "log"
    command = [sys.executable, "-m", "bide", "worker", target, "--health-file", str(ready)]
    with log.open("w") as output:
        process = subprocess.Popen(command, stderr=output, stdout=output)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None)
        if process.poll() is not None:
            sys.exit(f"bide worker {target} ended before it was ready; its log is above")
        yield
    except BaseException:
        sys.stderr.write(log.read_text())
        raise
    finally:
        process.terminate()
        process.wait(PATIENCE)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: it is not true within a minute.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not become true")
        time.sleep(0.02)
