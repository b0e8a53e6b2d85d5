"""An empty server for a cell of the table, and how much it holds."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.store import folder
from benchmarks.peers.processes import memory_of
from tests.postgres_server import PostgresServer, new_folder
from tests.servers import PATIENCE, RedisServer, free_port

__all__ = ["SERVERS", "Server"]


@dataclass(frozen=True)
class Server:
    """A server that is empty.

    Args:
        store: its URL, or the path of a file.
        used: returns how many bytes it holds: in memory, or on disk if it keeps messages there.
    """

    store: str
    used: Callable[[], int]


@contextmanager
def _redis() -> Iterator[Server]:
    """Run a Redis without a disk, on a port as most clients want one."""
    with tempfile.TemporaryDirectory(prefix="bide-peers-") as name:
        redis = RedisServer(Path(name), port=free_port())
        try:
            with redis.client() as client:
                url = f"redis://127.0.0.1:{redis.port}/0"
                yield Server(url, lambda: int(client.info("memory")["used_memory"]))
        finally:
            redis.stop()


@contextmanager
def _sqlite() -> Iterator[Server]:
    with folder() as path:
        yield Server(
            str(path / "peer.db"), lambda: sum(file.stat().st_size for file in path.iterdir())
        )


@contextmanager
def _postgres() -> Iterator[Server]:
    """Run a PostgreSQL that writes to the disk that is here."""
    with new_folder() as path:
        postgres = PostgresServer(path, fsync="on", shared_buffers="256MB", max_wal_size="4GB")

        def used() -> int:
            with postgres.client() as client:
                row = client.execute("SELECT pg_database_size(current_database())").fetchone()
            assert row is not None
            return int(row[0])

        try:
            yield Server(postgres.url, used)
        finally:
            postgres.stop()


@contextmanager
def _beanstalkd() -> Iterator[Server]:
    """Run a beanstalkd without a log, which is its default."""
    program = shutil.which("beanstalkd")
    assert program is not None, "no beanstalkd on PATH: run `tools/servers peers`"
    port = free_port()
    process = subprocess.Popen([program, "-l", "127.0.0.1", "-p", str(port)])
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(port):
            assert time.monotonic() < deadline, "beanstalkd does not come up"
            time.sleep(0.01)
        yield Server(f"127.0.0.1:{port}", lambda: memory_of([process.pid]))
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


SERVERS = {"redis": _redis, "sqlite": _sqlite, "postgres": _postgres, "beanstalkd": _beanstalkd}
"""By the name of a store: what runs an empty server of it."""
