"""The stores that are filled, with a replica if they have one, and how their primary is killed."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.store import folder
from tests.postgres_server import PostgresServer, new_folder
from tests.sentinels import SentinelGroup

__all__ = ["STORES", "Replicated", "open_store"]

STORES = ("sqlite", "redis", "postgres")
PATIENT = "reconnect=60s"
"""Callers wait for a failover, whatever it takes."""


@dataclass(frozen=True)
class Replicated:
    """An empty store.

    Args:
        url: where bide finds it, before and after a failover.
        kill: kills the primary with -9; None where the store has no primary.
    """

    url: str
    kill: Callable[[], None] | None = None


@contextmanager
def open_store(store: str) -> Iterator[Replicated]:
    """Provide a store on servers of its own, on the disk that is here."""
    if store == "sqlite":
        with folder() as path:
            yield Replicated(f"sqlite:///{path / 'bide.db'}")
    elif store == "redis":
        with tempfile.TemporaryDirectory(prefix="bide-bench-") as name:
            # A replica that is slower than the fill keeps its connection.
            group = SentinelGroup(
                Path(name), config={"client-output-buffer-limit": "replica 0 0 0"}
            )
            try:
                yield Replicated(f"{group.url}?{PATIENT}", lambda: group.master().stop())
            finally:
                group.stop()
    else:
        with _postgres() as replicated:
            yield replicated


@contextmanager
def _postgres() -> Iterator[Replicated]:
    """Run a primary and a standby that follows it; it is promoted when the primary is killed."""
    with new_folder() as path, new_folder() as path_of_standby:
        primary = PostgresServer(path, fsync="on", shared_buffers="256MB", max_wal_size="4GB")
        running = [primary]
        try:
            standby = primary.standby(path_of_standby)
            running.append(standby)

            def kill() -> None:
                primary.kill()
                running.remove(primary)
                standby.promote()

            hosts = f"host={path},{path_of_standby}&target_session_attrs=read-write"
            yield Replicated(f"postgresql://bide@/postgres?{hosts}&{PATIENT}", kill)
        finally:
            for server in running:
                server.stop()
