"""A server as a process of its own, as `bide serve` starts it."""

import itertools
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from bide.queue.stores import lane_to
from bide.server.access.tokens import Tokens


class ServerProcess:
    """Runs `bide serve`, and waits until it answers.

    Args:
        folder: where it runs, and keeps its log.
        arguments: of the command.
        descriptors: how many files it may have open.
        ca: a file with the certificate that its own is issued by, if it speaks TLS.
    """

    def __init__(
        self, folder: Path, *arguments: str, descriptors: int | None = None, ca: str | None = None
    ) -> None:
        self.log = folder / f"serve-{time.monotonic_ns()}.log"
        limit = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}"]
        command = [*limit, sys.executable, "-m", "bide", "serve", "--port", "0", *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BIDE_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stderr=log, process_group=0
            )
        self.url = self.until(r"listening on (\S+),")
        if self.url.startswith("http"):
            self._answers(ca)
        else:
            self.until("listening")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def text(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[int]:
        """Return the ids of the processes that answer."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in path.read_text().split()]

    def reload(self) -> None:
        """Have all processes replaced, and wait until the old ones have ended."""
        before = set(self.workers())
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while before & set(self.workers()):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """Kill all of it, as a machine that loses its power."""
        self.process.send_signal(signal.SIGSTOP)  # it replaces none, nor do they leave without it
        for worker in self.workers():
            os.kill(worker, signal.SIGKILL)
        self.process.kill()
        self.process.wait(60)

    def until(self, pattern: str) -> str:
        """Wait for the log to say something; return the first group, or all of it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.text):
                return found[1] if found.groups() else found[0]
            assert self.process.poll() is None, self.text
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in\n{self.text}")

    def _answers(self, ca: str | None) -> None:
        url, tls = self.url, None
        if ca is not None:
            url, tls = f"https://127.0.0.1:{self.port}", ssl.create_default_context(cafile=ca)
        urllib.request.urlopen(f"{url}/readyz", timeout=60, context=tls).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


@contextmanager
def urls_of_namespaces(folder: Path) -> Iterator[Callable[[], str]]:
    """Run a server, and provide its URLs, each with a token of a namespace that is empty."""
    store = f"sqlite:///{folder}/bide.db"
    numbers = itertools.count()

    def empty() -> str:
        with lane_to(store) as lane:
            token, _ = Tokens(lane).create(f"store{next(numbers)}", ["admin"])
        return server.url.replace("//", f"//:{token}@")

    with ServerProcess(folder, "--store", store, "--auth", "required") as server:
        yield empty
