"""A peer on an empty server: a client that is told what to do, and a worker that can be killed."""

import json
import math
import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from benchmarks.compare.trees import ROOT, environment
from benchmarks.peers.handled import PROBE, Handled, HandledLog
from benchmarks.peers.processes import kill_session, memory_of, processes_of
from benchmarks.peers.servers import Server

__all__ = ["Failed", "NotOffered", "Session", "Stopped", "session"]

LOOK = 0.05
"""Seconds between two looks at the log of the handlers."""


class NotOffered(Exception):
    """The peer cannot do this."""


class Stopped(Exception):
    """A cell took longer than its share."""


class Failed(Exception):
    """A program of a peer raised an error or ended."""


class Session:
    """The processes of one cell.

    Args:
        command: what runs the program of the peer.
        server: where it keeps its messages.
        settings: the tuned settings, or none.
        folder: of the logs.
        deadline: when the share of the cell is over, by `time.monotonic`.
        has_own_worker: whether the worker is a process beside the client.
    """

    def __init__(
        self,
        command: list[str],
        server: Server,
        settings: dict[str, Any],
        folder: Path,
        deadline: float,
        has_own_worker: bool = True,
    ) -> None:
        self.server = server
        self._command = command
        self.log = HandledLog(folder / "handled")
        self._messages = folder / "messages"
        self._deadline = deadline
        self._environment = environment(ROOT) | {
            "PEER_STORE": server.store,
            "PEER_LOG": str(self.log.path),
            "PEER_SETTINGS": json.dumps(settings),
        }
        self._has_own_worker = has_own_worker
        self._worker: subprocess.Popen[bytes] | None = None
        self._client = self._start_client()

    def _start_client(self) -> "subprocess.Popen[bytes]":
        client = self._start("client", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not self._has_own_worker:
            self._worker = client
        return client

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Tell the client to do something, and return its answer.

        Raises:
            NotOffered: the peer cannot do it.
            Stopped: it has not answered when the share is over.
            Failed: it raised an error, or ended.
        """
        assert self._client.stdin is not None
        try:
            self._client.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._client.stdin.flush()
        except BrokenPipeError:
            raise Failed(self.last_line()) from None
        answer: dict[str, Any] = json.loads(self._line())
        if "not_offered" in answer:
            raise NotOffered(answer["not_offered"])
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _line(self) -> bytes:
        """Read a line of the client."""
        stream: IO[bytes] | None = self._client.stdout
        assert stream is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, self.remaining())):
                    raise Stopped
                part = os.read(stream.fileno(), 65_536)
                if not part:
                    raise Failed(self.last_line())
                line += part
        return line

    def start_worker(self, *, probe: bool = True) -> None:
        """Start the worker of the peer, and wait until it handles a message that is due.

        Raises:
            Failed: it ended, or handled nothing within its share.
        """
        if self._has_own_worker:
            self.ask("put_at", first=PROBE, count=0, due=0)  # it has made what the worker needs
            self._worker = self._start("worker")
        elif self._worker is None:
            self._client = self._start_client()
        if not probe:
            return
        self.ask("put_at", first=PROBE, count=1, due=time.time())
        while not self.log.has_probe():
            if self._worker is not None and self._worker.poll() is not None:
                raise Failed(f"the worker ended: {self.last_line()}")
            if self.remaining() <= 0:
                raise Failed(f"the worker handled nothing: {self.last_line()}")
            time.sleep(LOOK)

    def kill_worker(self) -> None:
        """Kill all processes of the worker with -9."""
        if self._worker is not None:
            kill_session(self._worker.pid)
            self._worker.wait()
            self._worker = None

    def worker_memory(self) -> int:
        """Return the bytes that the processes of the worker have in memory."""
        assert self._worker is not None
        return memory_of(processes_of(self._worker.pid))

    def remaining(self) -> float:
        """Return the seconds that are left of the share."""
        return self._deadline - time.monotonic()

    def wait_for(self, count: int, until: float = math.inf) -> list[Handled]:
        """Wait until so many messages are handled, or until a Unix time; return those.

        Raises:
            Stopped: neither has come when the share is over.
        """
        while self.log.count() < count and time.time() < until:
            if self.remaining() <= 0:
                raise Stopped
            time.sleep(LOOK)
        return self.log.read()

    def wait_for_handler(self) -> None:
        """Wait until the handler of a message that takes a while has started.

        Raises:
            Stopped: none has when the share is over.
        """
        while not self.log.path.with_suffix(".begun").exists():
            if self.remaining() <= 0:
                raise Stopped
            time.sleep(LOOK)

    def last_line(self) -> str:
        """Return the last line of the programs that names an error, or else the last one."""
        text = self._messages.read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["no output"])[-1]

    def close(self) -> None:
        """End all processes."""
        self.kill_worker()
        kill_session(self._client.pid)
        self._client.wait()
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, and left a request unread
            self._client.stdin.close()
        self._client.stdout.close()

    def _start(self, role: str, **pipes: Any) -> "subprocess.Popen[bytes]":
        with self._messages.open("a") as messages:
            return subprocess.Popen(
                [*self._command, role],
                env=self._environment,
                cwd=self.log.path.parent,
                start_new_session=True,
                stderr=messages,
                **{"stdin": subprocess.DEVNULL, "stdout": messages, **pipes},
            )


@contextmanager
def session(
    command: list[str],
    server: Server,
    settings: dict[str, Any],
    folder: Path,
    share: float,
    has_own_worker: bool = True,
) -> Iterator[Session]:
    """Run a session for as many seconds as its share has."""
    opened = Session(command, server, settings, folder, time.monotonic() + share, has_own_worker)
    try:
        yield opened
    finally:
        opened.close()
