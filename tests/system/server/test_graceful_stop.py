"""A process that ends leaves no request that was sent without an answer."""

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from math import inf
from pathlib import Path
from typing import Any, Self

import pytest

from bide.server.app import ServerApp
from bide.server.http import connection_table
from bide.server.http.http_server import HttpServer
from bide.server.serve import bind
from bide.server.settings import Settings
from bide.worker.process.child import loop_factory
from tests.effort import effort
from tests.system.server.client import Q
from tests.system.server.process import ServerProcess

LONG = 60.0


class Leaving:
    """A server in a thread that is told to stop in mid-test."""

    def __init__(self, app: ServerApp, listening: socket.socket) -> None:
        self.app = app
        self.port: int = listening.getsockname()[1]
        self._server = HttpServer(app)
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self.thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._server.serve(listening)),
            daemon=True,  # a server that does not stop fails its test, and not the whole run
        )
        self.thread.start()

    def stop(self) -> None:
        """Tell it to stop, and return once it accepts no more."""
        self._loop.call_soon_threadsafe(self._server.stop)
        wait(lambda: self._server.stopping)

    def end(self) -> None:
        if self.thread.is_alive() and not self._server.stopping:
            self._loop.call_soon_threadsafe(self._server.stop)
        self.thread.join(LONG)
        assert not self.thread.is_alive(), "the server has not stopped"
        self._loop.close()

    def queued(self) -> bool:
        """Tell whether a request waits for the one before it on its connection."""
        return any(getattr(one, "_queue", None) for one in self._server.table.connections)

    def connections(self) -> list[Any]:
        return list(self._server.table.connections)

    def connect(self) -> "Connection":
        known = len(self._server.table.connections)
        connection = Connection(self.port)
        wait(lambda: len(self._server.table.connections) > known)
        return connection


class Connection:
    """A connection of which a test sees every byte."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        self._file = self._socket.makefile("rb")

    def send(
        self, path: str, content: object = None, *, method: str = "", upto: int | None = None
    ) -> bytes:
        """Send a request, or its beginning; return what was not sent."""
        body = b"" if content is None else json.dumps(content).encode()
        method = method or ("GET" if content is None else "POST")
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        self._socket.sendall(data[:upto])
        return b"" if upto is None else data[upto:]

    def rest(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, bool, bytes]:
        """Return the status of an answer, whether it is the last one, and its body."""
        status = int(self._file.readline().split()[1])
        headers = dict(iter(lambda: self._header(), ("", "")))
        body = self._file.read(int(headers["content-length"]))
        return status, headers.get("connection") == "close", body

    def _header(self) -> tuple[str, str]:
        name, _, value = self._file.readline().decode().strip().partition(": ")
        return name, value

    def until(self, line: bytes) -> None:
        while (read := self._file.readline()).strip() != line:
            assert read, f"no {line!r} has come"

    def closed(self) -> bool:
        """Return whether the server has closed it, in good order and without another byte."""
        return self._file.read() == b""

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def wait(true: object) -> None:
    deadline = time.monotonic() + LONG
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def served(tmp_path: Path) -> Iterator[Leaving]:
    app = ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db", push_networks=["127.0.0.1"]))
    with bind(Settings(port=0)) as listening:
        server = Leaving(app, listening)
        try:
            yield server
        finally:
            server.end()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaving]:
    """Provide a server that waits for long for what may be on its way."""
    monkeypatch.setattr(connection_table, "IDLE_SECONDS_AT_STOP", LONG)
    with served(tmp_path) as found:
        yield found


def test_a_connection_that_was_kept_has_one_more_answer(server: Leaving) -> None:
    connection = server.connect()
    connection.send("/healthz")
    assert connection.answer()[:2] == (200, False)
    server.stop()
    connection.send(f"{Q}/messages", {"body": 1})
    assert connection.answer()[:2] == (201, True)
    assert connection.closed()
    connection.close()


def test_a_connection_that_has_sent_nothing_yet_is_answered(server: Leaving) -> None:
    connection = server.connect()
    server.stop()
    connection.send("/healthz")
    assert connection.answer()[:2] == (200, True)
    assert connection.closed()
    connection.close()


def test_a_request_whose_half_has_come_is_answered(server: Leaving) -> None:
    connection = server.connect()
    rest = connection.send(f"{Q}/messages", {"body": 1}, upto=30)
    server.stop()
    connection.rest(rest)
    assert connection.answer()[:2] == (201, True)
    assert connection.closed()
    connection.close()


def test_what_is_under_way_is_told_that_it_is_the_last(server: Leaving) -> None:
    connection = server.connect()
    connection.send(f"{Q}/claim", {"wait": "5m"})
    wait(lambda: server.app.service.claimers.waiting)
    server.stop()
    status, last, body = connection.answer()
    assert (status, last, json.loads(body)["messages"]) == (200, True, [])
    connection.close()


def test_a_claim_that_comes_while_the_server_stops_does_not_wait(server: Leaving) -> None:
    connection = server.connect()
    server.stop()
    connection.send(f"{Q}/claim", {"wait": "5m"})
    status, last, body = connection.answer()
    assert (status, last, json.loads(body)["messages"]) == (200, True, [])
    connection.close()


def test_a_stream_that_the_server_ends_counts_as_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_table, "IDLE_SECONDS_AT_STOP", 0.05)
    with served(tmp_path) as server:
        connection = server.connect()
        connection.send("/v1/events")
        connection.until(b"event: tick")
        server.stop()
        connection.until(b"0")  # its proper end
        server.end()  # though the client keeps its connection
        assert server.app.service.requests == {("events", 200): 1}
        connection.close()


def test_requests_that_were_sent_together_are_all_answered(server: Leaving) -> None:
    connection = server.connect()
    with socket.create_server(("127.0.0.1", 0)) as receiver:
        url = f"http://127.0.0.1:{receiver.getsockname()[1]}/"
        connection.send("/v1/subscriptions/shop", {"queue": "q", "url": url}, method="PUT")
        assert connection.answer()[0] == 201
        connection.send("/v1/subscriptions/shop/ping", {})  # which is not answered by itself
        asked = receiver.accept()[0]
        connection.send("/healthz")
        wait(server.queued)
        server.stop()
        assert [connection.answer()[:2] for _ in range(2)] == [(503, False), (200, True)]
        asked.close()
    assert connection.closed()
    connection.close()


def test_a_connection_on_which_nothing_comes_is_closed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_table, "IDLE_SECONDS_AT_STOP", 0.05)
    with served(tmp_path) as server:
        used, unused, half = (server.connect() for _ in range(3))
        used.send("/healthz")
        used.answer()
        half.send("/healthz", upto=10)
        server.stop()
        for connection in (used, unused, half):
            assert connection.closed()
            connection.close()


class Load:
    """Clients that send one request after the other, and what became of each.

    Use it in a `with` block: a test that fails inside must not leave clients behind.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self.confirmed: list[str] = []
        self.lost: list[str] = []
        targets = [partial(self._keep, n, 0.003 * n) for n in range(16)]
        targets += [partial(self._fresh, n) for n in range(4)]
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        deadline = time.monotonic() + LONG
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "a request has no answer"

    def _keep(self, number: int, pause: float) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=LONG)
        used = time.monotonic()
        while not self._over.wait(pause):
            if time.monotonic() - used > 0.5:  # this machine is slow: it may be closed meanwhile
                connection.close()
            self._put(connection, f"keep-{number}", used)
            used = time.monotonic()
        connection.close()

    def _fresh(self, number: int) -> None:
        while not self._over.wait(0.01):
            connection = HTTPConnection("127.0.0.1", self._port, timeout=LONG)
            self._put(connection, f"fresh-{number}")
            connection.close()

    def _put(self, connection: HTTPConnection, name: str, used: float = inf) -> None:
        id, sent = f"{name}-{time.monotonic_ns()}", None
        try:
            kind = {"content-type": "application/json"}
            connection.request("PUT", f"{Q}/messages/{id}", '{"body": 1}', kind)
            sent = time.monotonic()
            reply = connection.getresponse()
            reply.read()
        except (OSError, HTTPException) as error:
            connection.close()
            if (sent or time.monotonic()) - used > 0.5:  # it waited for the processor until then
                self._put(connection, name)
            else:
                self.lost.append(f"{id}: {error!r}")
        else:
            (self.confirmed if reply.status == 201 else self.lost).append(id)


def _replaced(before: set[int], now: list[int]) -> bool:
    return len(now) == 2 and not before & set(now)


@pytest.mark.process
def test_processes_are_replaced_under_load_and_every_request_is_answered(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--workers", "2") as server:
        with Load(server.port) as load:
            for _ in range(effort(1, 2)):
                before, least = set(server.workers()), len(load.confirmed) + 50
                wait(lambda least=least: len(load.confirmed) > least)
                server.process.send_signal(signal.SIGHUP)
                wait(lambda before=before: _replaced(before, server.workers()))
        assert load.lost == []
        connection = HTTPConnection("127.0.0.1", server.port, timeout=LONG)
        connection.request("GET", Q)
        told = json.loads(connection.getresponse().read())
        connection.close()
        assert told["flow"]["put"] == len(load.confirmed)


def refuses(port: int) -> bool:
    """Tell whether nobody listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LONG).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was in the queue of a listener that has just closed
        return False
    return False


@pytest.mark.process
def test_nobody_is_let_in_while_what_is_under_way_is_finished(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--workers", "2") as server:
        connection = Connection(server.port)
        rest = connection.send(f"{Q}/messages", {"body": 1}, upto=30)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: refuses(server.port))
        connection.rest(rest)
        assert connection.answer()[:2] == (201, True)
        connection.close()


def test_who_is_slow_to_read_gets_all_of_an_answer_that_was_sent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_table, "IDLE_SECONDS_AT_STOP", 0.02)
    with served(tmp_path) as server:
        connection = server.connect()
        for number in range(8):
            connection.send(f"{Q}/messages/m{number}", {"body": "x" * 900_000}, method="PUT")
            assert connection.answer()[0] == 201
        connection.send(f"{Q}/messages")
        (one,) = server.connections()
        wait(lambda: one.write_paused)
        server.stop()
        wait(lambda: one.closes_when_sent)
        status, _, body = connection.answer()
        assert (status, len(json.loads(body)["messages"])) == (200, 8)
        assert connection.closed()
        connection.close()
