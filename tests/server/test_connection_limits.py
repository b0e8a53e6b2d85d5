"""A server bounds connections, their time, and what clients leave unread."""

import resource
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from bide.model.limits import MAX_DISCARDED, MAX_HEADS, MAX_UNREAD, SMALL_HEAD
from bide.server.http import connection, connection_table, output
from bide.server.http.exchange import head
from tests.server.client import Client, Q
from tests.server.conftest import SERVERS, Serve
from tests.server.raw import exchange, request, status_of
from tests.server.test_connection import connect, read_all, until

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
PUT = b"POST /v1/queues/orders/put HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
PUT = PUT.replace(b"host: a", b"host: localhost")


@pytest.mark.parametrize("sent", [b"", GET, GET + b"\r\n" + GET[:10]])
def test_who_sends_nothing_for_long_is_left(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE", 0.2)
    client = serve(request_timeout=0.2)
    with connect(client) as raw:
        raw.sendall(sent)
        read_all(raw)


@pytest.mark.parametrize("after", ["", "close"])
def test_who_reads_no_answer_is_cut_off(
    client: Client, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    monkeypatch.setattr(output, "STALLED", 0.2)
    for number in range(5):
        body = {"messages": [{"id": f"m{number}", "body": "x" * 1_000_000}]}
        assert client.post(f"{Q}/put", body).status == 200
    get = request("GET", f"{Q}/messages", connection=after)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect(("127.0.0.1", client.port))
        raw.settimeout(20)
        connections = SERVERS[client.port].table.connections
        until(lambda: len(connections) == 2)
        raw.sendall(get * (1 if after else 20))
        until(lambda: len(connections) == 1)
    assert client.get("/healthz").status == 200


def test_who_has_caught_up_is_not_cut_off_for_having_been_behind(client: Client) -> None:
    """Else a client that reads all is cut off, if it is behind again when that time is over."""
    for number in range(5):
        client.put(f"{Q}/messages/m{number}", {"body": "x" * 900_000, "delay": "1h"})
    client.close()
    table = SERVERS[client.port].table
    until(lambda: not table.connections)
    with connect(client) as raw:
        raw.sendall(request("GET", f"{Q}/messages", connection=""))
        until(lambda: len(table.unread) == 1)
        (one,) = table.unread
        assert isinstance(one, output.ResponseOutput)
        watch = one._stall
        assert watch is not None
        size = 0
        while size < 4_500_000:
            size += len(raw.recv(1 << 20))
        until(lambda: not one.write_paused)
        assert watch.cancelled()


def test_the_rest_of_a_refused_request_is_discarded_up_to_a_limit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER", 60.0)
    table = SERVERS[client.port].table
    with connect(client) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")  # without a host
        assert b" 400 " in raw.recv(4_096)
        (one,) = table.connections
        assert isinstance(one, connection.Connection)
        raw.sendall(b"x" * MAX_DISCARDED)
        until(lambda: one._discarded == MAX_DISCARDED)
        assert one in table.connections
        raw.sendall(b"x")
        until(lambda: not table.connections)


def test_an_address_has_so_many_connections(serve: Serve, make_token: object) -> None:
    client = serve(auth="required", connections_per_address=3)
    open_ones = [connect(client) for _ in range(3)]
    for raw in open_ones:
        raw.sendall(GET + b"\r\n")
        assert status_of(raw.recv(1_000)) == 200
    answer = exchange(client.port, b"")
    assert status_of(answer) == 429
    assert b"retry-after: 1" in answer
    open_ones.pop().close()
    until(lambda: status_of(exchange(client.port, request("GET", "/healthz"))) == 200)
    for raw in open_ones:
        raw.close()


def test_who_is_refused_can_read_why_and_takes_few_descriptors(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER", 3_600)
    client = serve(auth="required", connections_per_address=1)
    table = SERVERS[client.port].table
    assert client.get("/healthz").status == 200
    large = request("POST", f"{Q}/put", body=b"x" * 300_000)
    with ExitStack() as stack:
        for _ in range(connection_table.LINGERING):
            raw = stack.enter_context(connect(client))
            raw.sendall(large)
            assert status_of(read_all(raw)) == 429
        assert len(table.refused) == connection_table.LINGERING
        with connect(client) as raw:
            read_all(raw)
        assert len(table.refused) == connection_table.LINGERING
    until(lambda: not table.refused)


@dataclass(eq=False)
class From:
    """Stands for a connection from an address that this machine does not have."""

    address: str


def test_a_network_of_ipv6_has_as_many_as_an_address(serve: Serve) -> None:
    client = serve(auth="required", connections_per_address=2)
    table = SERVERS[client.port].table
    ones: list[Any] = [From(f"2001:db8::{n}") for n in range(3)]
    other: Any = From("2001:db8:0:1::1")
    assert [table.enter(one) is None for one in (*ones, other)] == [True, True, False, True]
    table.leave(ones[0])
    assert table.enter(ones[2]) is None
    for one in (*ones[1:], other):
        table.leave(one)


def test_answers_that_are_not_read_take_so_much_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of many connections keeps an answer of megabytes for as long as it reads a byte."""
    for number in range(6):
        client.put(f"{Q}/messages/m{number}", {"body": "x" * 900_000, "delay": "1h"})
    with ExitStack() as stack:

        def ask(address: str) -> socket.socket:
            raw = stack.enter_context(socket.socket())
            raw.settimeout(60)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            raw.bind((address, 0))
            raw.connect(("127.0.0.1", client.port))
            raw.sendall(request("GET", f"{Q}/messages"))
            return raw

        table = SERVERS[client.port].table
        before = len(table.connections)
        mine = ask("127.0.0.9")
        until(lambda: len(table.unread) == 1)
        (size,) = (one.transport.get_write_buffer_size() for one in table.unread)
        assert 1_000_000 < size < MAX_UNREAD
        monkeypatch.setattr(connection_table, "MAX_UNREAD", size * 5 // 2)
        for _ in range(3):
            ask("127.0.0.1")
        until(lambda: len(table.unread) == 2 and len(table.connections) == before + 2)
        assert len(read_all(mine)) > 5_400_000


def test_silent_connections_make_room_for_others(serve: Serve) -> None:
    client = serve(max_connections=5, connections_per_address=1)
    silent = [connect(client) for _ in range(20)]
    assert status_of(exchange(client.port, request("GET", "/healthz"))) == 200
    for raw in silent:
        raw.close()


def test_silent_connections_do_not_close_those_of_another_address(serve: Serve) -> None:
    client = serve(max_connections=5)
    with socket.create_connection(
        ("127.0.0.1", client.port), source_address=("127.0.0.9", 0)
    ) as mine:
        mine.settimeout(10)
        mine.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of(mine.recv(4_096)) == 200
        silent = [connect(client) for _ in range(20)]
        assert status_of(exchange(client.port, request("GET", "/healthz"))) == 200
        mine.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of(mine.recv(4_096)) == 200
    for raw in silent:
        raw.close()


def test_who_has_many_busy_connections_closes_none_of_another_address(serve: Serve) -> None:
    client = serve(max_connections=3)
    ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with ExitStack() as stack:
        mine = stack.enter_context(
            socket.create_connection(
                ("127.0.0.1", client.port), 10, source_address=("127.0.0.9", 0)
            )
        )
        mine.sendall(ask)
        assert status_of(mine.recv(4_096)) == 200
        for _ in range(2):
            busy = stack.enter_context(connect(client))
            busy.sendall(b"GET /v1/events?counts=0 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert status_of(busy.recv(1_000)) == 200
        assert status_of(exchange(client.port, b"")) == 503
        mine.sendall(ask)
        assert status_of(mine.recv(4_096)) == 200


def test_no_connection_is_taken_while_all_are_busy(serve: Serve) -> None:
    client = serve(max_connections=2)
    streams = [connect(client) for _ in range(2)]
    for raw in streams:
        raw.sendall(b"GET /v1/events?counts=0 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of(raw.recv(1_000)) == 200
    assert status_of(exchange(client.port, b"")) == 503
    for raw in streams:
        raw.close()


def test_descriptors_bound_the_connections(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    for given, most in ((10_000, 192), (100, 100)):
        assert SERVERS[serve(max_connections=given).port].table.most == most


def test_a_header_cannot_hold_another() -> None:
    for value in (b"x\r\nset-cookie: a=b", b"x\nset-cookie: a=b", b"x\rset-cookie: a=b"):
        with pytest.raises(RuntimeError, match="end of a line"):
            head(200, [(b"etag", value)])


def test_refusals_are_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bide.access")
    exchange(client.port, b"nonsense\r\n\r\n")
    exchange(client.port, request("GET", "/nowhere"))
    exchange(client.port, request("TRACE", "/healthz"))
    told = [record.getMessage() for record in caplog.records if record.name == "bide.access"]
    assert [line.split()[-7] for line in told] == ["400", "404", "405"]


def test_unfinished_heads_have_room_together(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SMALL_HEAD < 15_000 < MAX_HEADS
    monkeypatch.setattr(connection_table, "MAX_HEADS", 40_000)
    table = SERVERS[client.port].table
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 15_000
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=60))
            for _ in range(2)
        ]
        for raw in waiting:
            raw.sendall(head)
        until(lambda: table.head_bytes > 30_000)
        assert status_of(exchange(client.port, head)) == 503
        small = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert status_of(exchange(client.port, small)) == 200
        waiting[0].sendall(b"\r\nconnection: close\r\n\r\n")
        assert waiting[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
    until(lambda: not table.head_bytes)
    assert status_of(exchange(client.port, head + b"\r\nconnection: close\r\n\r\n")) == 200
