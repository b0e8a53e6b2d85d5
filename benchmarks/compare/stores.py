"""New stores of each kind, for one tree."""

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.compare.trees import environment
from benchmarks.core.store import folder
from tests.postgres_server import PostgresServer, new_folder
from tests.servers import RedisServer, free_port

__all__ = ["PATIENCE", "STORES", "Unmeasurable", "last_line", "open_store"]

STORES = ("memory", "sqlite", "redis", "postgres", "http")
PATIENCE = 60.0


class Unmeasurable(Exception):
    """A tree cannot run what is measured."""


def last_line(log: IO[str]) -> str:
    """Return what a program said last."""
    log.seek(0)
    return next((line.strip() for line in reversed(log.readlines()) if line.strip()), "no output")


@contextmanager
def open_store(store: str, tree: Path) -> Iterator[str]:
    """Provide the URL of an empty store, on a server of its own: it keeps what a tree loads.

    Raises:
        Unmeasurable: the tree's own server does not start.
    """
    if store == "memory":
        yield "memory://"
    elif store == "sqlite":
        with folder() as path:
            yield f"sqlite:///{path / 'bide.db'}"
    elif store == "redis":
        with tempfile.TemporaryDirectory(prefix="bide-bench-") as name:
            redis = RedisServer(Path(name))
            try:
                yield redis.url
            finally:
                redis.stop()
    elif store == "postgres":
        with new_folder() as path:
            postgres = PostgresServer(path, fsync="on", shared_buffers="256MB", max_wal_size="4GB")
            try:
                yield postgres.url
            finally:
                postgres.stop()
    else:
        with _served(tree) as url:
            yield url


@contextmanager
def _served(tree: Path) -> Iterator[str]:
    """Run `bide serve` of a tree on a store in memory."""
    port = free_port()
    command = [sys.executable, "-m", "bide", "serve", "--port", str(port), "--store", "memory://"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=environment(tree), cwd=tree, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not _is_ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Unmeasurable(f"bide serve: {last_line(log)}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE):
            return True
    except OSError:
        return False
