"""A connection speaks HTTP/1.1, and bounds what a client can make the server keep."""

import socket
import time
from collections.abc import Callable

import pytest

from bide.model.limits import MAX_FIELDS, MAX_HEAD
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.raw import exchange, request, status_of

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
PUT = b"POST /v1/queues/orders/put HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
PUT = PUT.replace(b"host: a", b"host: localhost")


def connect(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=60)


def read_all(raw: socket.socket) -> bytes:
    data = b""
    while piece := raw.recv(1 << 20):
        data += piece
    return data


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
