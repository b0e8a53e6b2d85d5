"""`bide prove` with 1,000 kills on each engine; where there is a server, it is killed as well.

python -m tests.soak.proving --store redis --kills 1000
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.postgres_server import PostgresServer, new_folder
from tests.servers import RedisServer, free_port
from tests.system.server.process import ServerProcess

__all__ = ["STORES", "main", "prove"]


class ProvedStore(NamedTuple):
    """A store that is proved."""

    url: str
    kill_server: Callable[[], object] | None = None
    """Kills its server with -9, and starts it again; `None`: it has none."""


@contextmanager
def _sqlite(folder: Path) -> Iterator[ProvedStore]:
    yield ProvedStore(f"sqlite:///{folder}/bide.db")


@contextmanager
def _postgres(folder: Path) -> Iterator[ProvedStore]:
    with new_folder() as place, ExitStack() as stack:
        server = PostgresServer(place, fsync="on")
        stack.callback(server.stop)

        def kill_server() -> None:
            server.kill()
            server.start()

        yield ProvedStore(server.url, kill_server)


@contextmanager
def _redis(folder: Path) -> Iterator[ProvedStore]:
    """Provide a server that writes each change to its append-only file before it answers."""
    server = RedisServer(folder, appendonly="yes", appendfsync="always")
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"

    def kill_server() -> None:
        server.stop()
        # Half a change may be at the end of the file, as the documentation says.
        subprocess.run(
            ["redis-check-aof", "--fix", manifest],
            input=b"y\n",
            stdout=subprocess.DEVNULL,
            check=True,
        )
        server.start()

    try:
        yield ProvedStore(server.url, kill_server)
    finally:
        server.stop()


@contextmanager
def _http(folder: Path) -> Iterator[ProvedStore]:
    arguments = ("--port", str(free_port()), "--store", f"sqlite:///{folder}/served.db")
    servers = [ServerProcess(folder, *arguments)]

    def kill_server() -> None:
        servers.pop().kill()
        servers.append(ServerProcess(folder, *arguments))

    try:
        yield ProvedStore(servers[0].url, kill_server)
    finally:
        for server in servers:
            server.stop()


STORES = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis, "http": _http}
"""What provides a store of each kind in a folder."""


class ServerFault:
    """Kills a server when this process, which has started it, gets a signal.

    Args:
        kill_server: kills it, and starts it again.
    """

    def __init__(self, kill_server: Callable[[], object]) -> None:
        self._kill_server = kill_server
        self._is_down = False
        signal.signal(signal.SIGUSR1, self._strike)
        self.command = f"kill -USR1 {os.getpid()}"
        """The fault, as a command for the shell."""

    def _strike(self, *_: object) -> None:
        if self._is_down:  # a slow machine is still starting it
            return
        self._is_down = True
        self._kill_server()
        self._is_down = False


def prove(kind: str, kills: int, kill_every: str, every: str) -> bool:
    """Prove a store of a kind, and tell whether it kept every promise; `bide prove` says the rest.

    Args:
        kind: of the store.
        kills: how many processes are killed.
        kill_every: the average time between two kills.
        every: how often the server is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="bide-proving-"))
    try:
        with STORES[kind](folder) as store:
            command = [sys.executable, "-m", "bide", "prove", store.url]
            command += ["--kills", str(kills), "--kill-every", kill_every]
            if store.kill_server is not None:
                command += ["--fault", ServerFault(store.kill_server).command, "--every", every]
            return subprocess.run(command, check=False).returncode == 0
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Prove the stores; return 1 if one of them broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=[*STORES], action="append", help="all by default")
    parser.add_argument("--kills", type=int, default=1_000, help="of processes, for each store")
    parser.add_argument("--kill-every", default="300ms", help="the average time between two")
    parser.add_argument("--every", default="30s", help="how often a server is killed")
    options = parser.parse_args()
    kinds = options.store or [*STORES]
    is_proved = {}
    for kind in kinds:
        print(f"{kind}: {options.kills:,} kills", flush=True)
        is_proved[kind] = prove(kind, options.kills, options.kill_every, options.every)
    for kind, proved in is_proved.items():
        print(f"{kind}: {'proved' if proved else 'not proved'}")
    return 0 if all(is_proved.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
