"""A connection speaks HTTP/1.1; the server bounds connections, their time and what they leave."""

import asyncio
import logging
import resource
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from bide.model.limits import (
    MAX_DISCARDED,
    MAX_FIELDS,
    MAX_HEAD,
    MAX_HEADS,
    MAX_HINTS,
    MAX_UNREAD,
    SMALL_HEAD,
)
from bide.server.app import answer
from bide.server.call import ApiCall
from bide.server.http import connection, connection_table, output
from bide.server.http.exchange import head
from bide.server.limits.open_calls import Listener
from bide.server.operation import Answer, Operation
from bide.server.response import Response
from bide.server.service import Service
from bide.server.settings import Settings
from tests.system.server.client import Client, Q
from tests.system.server.conftest import SERVERS, Serve
from tests.system.server.raw import exchange, request, status_of
from tests.waiting import until

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
PUT = (
    b"POST /v1/queues/orders/put HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)


def connect(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=60)


def read_all(raw: socket.socket) -> bytes:
    data = b""
    while piece := raw.recv(1 << 20):
        data += piece
    return data


def of_size(size: int) -> bytes:
    """Return a request whose target and fields take so many bytes, as the server counts them."""
    fixed = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
    counted = len("/healthz") + len("hostlocalhost") + 4 + len("connectionclose") + 4 + 5
    return fixed + b"y" * (size - counted) + b"\r\n\r\n"


def test_a_head_at_the_limit_is_read_and_one_past_it_is_not(client: Client) -> None:
    assert status_of(exchange(client.port, of_size(MAX_HEAD))) == 200
    answer = exchange(client.port, of_size(MAX_HEAD + 1))
    assert status_of(answer) == 431
    assert b"65,536" in answer


def test_fields_at_the_limit_are_read_and_one_past_it_is_not(client: Client) -> None:
    for more, status in ((0, 200), (1, 431)):
        fields = b"x: y\r\n" * (MAX_FIELDS - 2 + more)
        data = GET + b"connection: close\r\n" + fields + b"\r\n"
        assert status_of(exchange(client.port, data)) == status


@pytest.mark.parametrize("piece", [b"x" * 1_000, b"a: b\r\n" * 200, b"\r\n" * 500])
def test_a_head_without_end_is_cut_off(client: Client, piece: bytes) -> None:
    with connect(client) as raw:
        raw.sendall(b"" if piece.startswith(b"\r\n") else GET)
        sent = 0
        try:
            while sent < 16 << 20:
                raw.sendall(piece * 50)
                sent += len(piece) * 50
        except OSError:
            pass  # the server has closed the connection
        assert sent < 16 << 20
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize("start", [b"0\r\nx: ", b"2;x=", b"0"], ids=["field", "extension", "size"])
def test_what_stands_around_chunks_without_end_is_cut_off(client: Client, start: bytes) -> None:
    with connect(client) as raw:
        raw.sendall(PUT + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n" + start)
        sent = 0
        try:
            while sent < 16 << 20:
                raw.sendall(b"0" * 50_000)
                sent += 50_000
        except OSError:
            pass  # the server has closed the connection
        assert sent < 16 << 20
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    "data",
    [
        GET + b"host: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        GET + b"authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
        PUT + b"content-type: text/plain\r\ncontent-length: 2\r\n\r\n{}",
        PUT + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        PUT + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        PUT + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n",
        PUT + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        PUT + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        PUT + b"transfer-encoding: identity\r\n\r\n{}",
        PUT + b"content-length: +2\r\n\r\n{}",
        PUT + b"content-length : 2\r\n\r\n{}",
        PUT.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        GET.replace(b"1.1", b"1.2") + b"\r\n",
        GET.replace(b"1.1", b"0.9") + b"\r\n",
        GET + b"x y\r\n\r\n",
        GET + b" folded: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(client: Client, data: bytes) -> None:
    smuggled = b"GET /v1/queues HTTP/1.1\r\nhost: localhost\r\n\r\n"
    answer = exchange(client.port, data + smuggled)
    assert status_of(answer) == 400
    assert answer.count(b"\r\ndate: ") == 1
    assert b"application/problem+json" in answer


def test_requests_of_one_packet_are_answered_in_their_order(client: Client) -> None:
    puts = [request("PUT", f"{Q}/messages/m{n}", b'{"body": 1}', connection="") for n in range(50)]
    gets = [request("GET", f"{Q}/messages/m{n}", connection="") for n in range(49)]
    with connect(client) as raw:
        raw.sendall(b"".join([*puts, *gets, request("GET", f"{Q}/messages/m49")]))
        answers = read_all(raw)
    assert answers.count(b"HTTP/1.1 201 ") == 50
    seen = answers[answers.index(b"HTTP/1.1 200 ") :]
    places = [seen.find(b'"id":"m%d"' % n) for n in range(50)]
    assert places == sorted(places)
    assert places[0] > 0


def test_a_request_may_come_byte_by_byte(client: Client) -> None:
    with connect(client) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request("PUT", f"{Q}/messages/m", b'{"body": 1}'):
            raw.sendall(bytes([byte]))
        assert status_of(read_all(raw)) == 201


def test_a_body_may_come_in_chunks_after_a_continue(client: Client) -> None:
    with connect(client) as raw:
        raw.sendall(PUT + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n")
        assert raw.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        body = b'{"messages": [%b]}' % b",".join([b'{"body": 1}'] * 5_000)
        for at in range(0, len(body), 999):
            piece = body[at : at + 999]
            raw.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        raw.sendall(b"0\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_who_waits_for_a_continue_is_refused_without_the_body(serve: Serve) -> None:
    client = serve(max_request=2_000)
    data = PUT + b"expect: 100-continue\r\ncontent-length: 5000\r\n\r\n"
    answer = exchange(client.port, data)
    assert status_of(answer) == 413
    assert b"connection: close" in answer


def test_a_large_body_that_nobody_reads_is_not_kept(serve: Serve) -> None:
    client = serve(auth="required")
    with connect(client) as raw:
        raw.sendall(PUT + b"content-length: 30000000\r\n\r\n")
        raw.sendall(b"x" * 100_000)
        answer = read_all(raw)
    assert status_of(answer) == 401
    assert b"connection: close" in answer


def test_the_answer_to_head_has_no_body(client: Client) -> None:
    answer = exchange(client.port, request("HEAD", "/healthz"))
    assert b"\r\ncontent-length: 15\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_the_answer_to_head_ends_where_that_to_get_goes_on(client: Client) -> None:
    data = b"HEAD /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
    answers = exchange(client.port, data + GET + b"connection: close\r\n\r\n")
    assert b"content-type: text/event-stream" in answers
    assert answers.endswith(b'{"status":"ok"}')
    until(lambda: len(client.app.service.events) == 0)


def test_old_clients_are_answered(client: Client) -> None:
    assert b"connection: close" in exchange(client.port, b"GET /healthz HTTP/1.0\r\n\r\n")
    with connect(client) as raw:
        for _ in range(2):
            raw.sendall(b"GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            assert b"connection: keep-alive" in raw.recv(1_000)
        raw.sendall(b"GET /v1/events?counts=0 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert b"chunked" not in raw.recv(1_000)


def test_what_follows_a_connect_is_no_http(client: Client) -> None:
    answer = exchange(client.port, b"CONNECT example.com:80 HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"connection: close" in answer
    assert answer.count(b"\r\ndate: ") == 1


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@pytest.mark.parametrize("at_once", [1, 7, 100_000])
def test_a_wish_for_another_protocol_is_ignored(
    client: Client, upgrade: bytes, at_once: int
) -> None:
    wish = b"connection: upgrade\r\nupgrade: " + upgrade + b"\r\n"
    messages = [b'{"messages": [{"id": "m%d", "body": 1}]}' % n for n in range(3)]
    data = b"".join(
        PUT + wish + b"content-length: %d\r\n\r\n" % len(one) + one for one in messages[:2]
    )
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(messages[2]), messages[2])
    data += PUT + wish + b"transfer-encoding: chunked\r\n\r\n" + chunk
    data += GET + wish + b"\r\n" + GET + b"connection: close\r\n\r\n"
    with connect(client) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), at_once):
            raw.sendall(data[at : at + at_once])
        answers = read_all(raw)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 5
    assert answers.count(b"connection: close") == 1
    assert client.get(Q).json["sizes"]["ready"] == 3


def test_a_refused_wish_for_another_protocol_is_refused(client: Client) -> None:
    wish = b"connection: upgrade\r\nupgrade: h2c\r\n"
    assert status_of(exchange(client.port, GET + wish + b"host: localhost\r\n\r\n")) == 400
    assert (
        status_of(exchange(client.port, GET + wish + b"x: " + b"y" * MAX_HEAD + b"\r\n\r\n")) == 431
    )


def test_a_target_may_be_a_whole_url(client: Client) -> None:
    data = request("GET", f"http://127.0.0.1:{client.port}/healthz")
    assert status_of(exchange(client.port, data)) == 200


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
        watch = one.stall_timer
        assert watch is not None
        size = 0
        while size < 4_500_000:
            size += len(raw.recv(1 << 20))
        until(lambda: not one.write_paused)
        assert watch.cancelled()


def test_the_rest_of_a_refused_request_is_discarded_up_to_a_limit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 60.0)
    table = SERVERS[client.port].table
    with connect(client) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")  # without a host
        assert b" 400 " in raw.recv(4_096)
        (one,) = table.connections
        assert isinstance(one, connection.Connection)
        raw.sendall(b"x" * MAX_DISCARDED)
        until(lambda: one.discarded == MAX_DISCARDED)
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
    monkeypatch.setattr(connection, "LINGER_SECONDS", 3_600)
    client = serve(auth="required", connections_per_address=1)
    table = SERVERS[client.port].table
    assert client.get("/healthz").status == 200
    large = request("POST", f"{Q}/put", body=b"x" * 300_000)
    with ExitStack() as stack:
        for _ in range(connection_table.MOST_REFUSED):
            raw = stack.enter_context(connect(client))
            raw.sendall(large)
            assert status_of(read_all(raw)) == 429
        assert len(table.refused) == connection_table.MOST_REFUSED
        with connect(client) as raw:
            read_all(raw)
        assert len(table.refused) == connection_table.MOST_REFUSED
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


async def _nobody() -> dict[str, Any]:
    raise AssertionError("nothing is to be received")


def _sent_by(handle: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def ask() -> None:
        service = Service(Settings(store="memory://"))
        try:
            operation = Operation("x", "GET", "/x", None, handle, {200: None})
            scope: dict[str, Any] = {
                "type": "http",
                "method": "GET",
                "path": "/x",
                "headers": [],
                "query_string": b"",
                "server": None,
                "client": None,
            }
            await answer(service, {"GET": operation}, scope, "/x", _nobody, Response(send, "r-1"))
        finally:
            await service.end()

    asyncio.run(ask())
    return sent


def test_a_mistake_in_a_stream_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(call: ApiCall) -> Answer | None:
        await call.response.begin_stream("text/event-stream")
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR, "bide.server"):
        start, end = _sent_by(handle)
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert end == {"type": "http.response.body"}
    assert "RuntimeError: boom" in caplog.text


def test_a_mistake_before_is_an_answer_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(call: ApiCall) -> Answer | None:
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR, "bide.server"):
        start, body = _sent_by(handle)
    assert start["status"] == 500
    assert b"boom" not in body["body"]
    assert "RuntimeError: boom" in caplog.text


def test_a_stream_that_is_read_slowly_keeps_so_many_hints() -> None:
    """Each end of a message that somebody waits for is a hint under a name of its own."""
    listener = Listener()
    for number in range(MAX_HINTS + 1):
        listener.add(f"orders m{number}", 5)
    listener.add("orders m0", 3)
    assert listener.news.is_set()
    hints = listener.take()
    assert (len(hints), hints["orders m0"]) == (MAX_HINTS, 3)
    listener.add("orders", 1)
    assert listener.take() == {"orders": 1}
