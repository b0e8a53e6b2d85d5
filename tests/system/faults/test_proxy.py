"""The proxy of the fault tests does what it says."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import get_args

import pytest

from tests.proxy import Fault, Faults, Proxy, before_all
from tests.servers import PATIENCE, free_port
from tests.waiting import until


class Server:
    """Answers what it gets with `got ` before it, and with `answer` to whatever asks for it."""

    def __init__(self, port: int = 0, answer: bytes = b"") -> None:
        self.requests: queue.Queue[bytes] = queue.Queue()
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(100):
                self.requests.put(data)
                connection.sendall(self._answer or b"got " + data)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def exchange(client: socket.socket, request: bytes) -> bytes:
    """Return the answer to a request; empty if the connection was closed instead."""
    with suppress(ConnectionResetError):
        client.sendall(request)
        return client.recv(100)
    return b""


@pytest.mark.parametrize(
    ("fault", "answered", "executed"),
    [("cut", b"", 0), ("reset", b"", 0), ("lose", b"", 1), ("delay", b"got ab", 1)],
)
def test_a_request_meets_the_fault_that_was_ordered(
    proxy_before: Callable[[str | int], Proxy],
    server: Server,
    fault: Fault,
    answered: bytes,
    executed: int,
) -> None:
    proxy = proxy_before(server.port)
    proxy.strike(fault)
    with connect(proxy) as client:
        assert exchange(client, b"ab") == answered
    assert proxy.struck
    assert server.requests.qsize() == executed
    with connect(proxy) as client:
        assert exchange(client, b"on") == b"got on"


def test_a_part_of_a_request_is_passed_on(
    proxy_before: Callable[[str | int], Proxy], server: Server
) -> None:
    proxy = proxy_before(server.port)
    proxy.faults = Faults(1.0, ["half"])
    with connect(proxy) as client:
        assert len(exchange(client, b"ab")) < len(b"got a")
    while not server.requests.empty():
        assert server.requests.get() == b"a"


@pytest.mark.parametrize("fault", ["hang", "hang after"])
def test_a_connection_that_hangs_stays_open_and_says_nothing(
    proxy_before: Callable[[str | int], Proxy], server: Server, fault: Fault
) -> None:
    proxy = proxy_before(server.port)
    proxy.strike(fault)
    with connect(proxy) as client, connect(proxy) as other:
        client.sendall(b"ab")
        if fault == "hang after":
            assert server.requests.get(timeout=PATIENCE) == b"ab"
        until(lambda: proxy.struck)
        assert exchange(other, b"on") == b"got on"
        assert server.requests.get(timeout=PATIENCE) == b"on"
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)


def test_what_comes_byte_by_byte_is_complete(
    proxy_before: Callable[[str | int], Proxy], server: Server
) -> None:
    proxy = proxy_before(server.port)
    proxy.faults = Faults(1.0, ["crumbs"])
    with connect(proxy) as client, client.makefile("rwb") as file:
        file.write(b"a")
        file.flush()
        assert file.read(len(b"got a")) == b"got a"
    assert proxy.faults.counts == {"crumbs": 2}


def test_faults_strike_their_share_and_all_kinds_of_them() -> None:
    faults = Faults(0.25, seed=1)
    drawn = [faults.draw() for _ in range(4_000)]
    assert set(drawn) == {None, *get_args(Fault)}
    assert 800 < sum(faults.counts.values()) < 1_200


def test_servers_that_name_each_other_name_the_proxies() -> None:
    first, second = sorted((free_port(), free_port()))
    answer = b"*2\r\n:%d\r\n$5\r\n%d\r\n-MOVED 1 127.0.0.1:%d\r\n$6\r\n%d0\r\n"
    servers = [Server(first, answer % (first, second, second, first)), Server(second)]
    proxies = before_all([first, second])
    one, other = proxies[first], proxies[second]
    try:
        with connect(one) as client:
            assert exchange(client, b"?") == answer % (one.port, other.port, other.port, first)
    finally:
        for proxy in proxies.values():
            proxy.close()
        for server in servers:
            server.close()
