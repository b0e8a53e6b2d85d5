"""What a connection does beside uvicorn's HTTP: whole answers, and patience that ends."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.server import ServerState

from bide.server.app import App
from bide.server.child import config
from bide.server.protocol import KEEP_ALIVE, Exchange, Protocol
from bide.server.settings import Settings

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Wire(asyncio.Transport):
    """Remembers what was written, and whether it was closed."""

    def __init__(self) -> None:
        self.ends = socket.socketpair()
        super().__init__({"socket": self.ends[0]})
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


class Moments(asyncio.SelectorEventLoop):
    """An event loop whose clock a test moves."""

    passed = 0.0

    def time(self) -> float:
        return super().time() + self.passed

    def turns(self, seconds: float = 0.0) -> None:
        """Let time pass, and run all that is due."""
        self.passed += seconds
        for _ in range(20):
            self.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def loop() -> Iterator[Moments]:
    loop = Moments()
    yield loop
    loop.close()


@pytest.fixture
def app() -> Iterator[App]:
    app = App(Settings(store="memory://"))
    yield app
    app.service.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    for end in wire.ends:
        end.close()


@pytest.fixture
def protocol(app: App, wire: Wire, loop: Moments) -> Protocol:
    loaded = config(app)
    loaded.load()
    kind: Any = loaded.http_protocol_class
    protocol: Protocol = kind(loaded, ServerState(), {}, loop)
    protocol.connection_made(wire)
    return protocol


def test_an_answer_is_written_at_once(protocol: Protocol, wire: Wire, loop: Moments) -> None:
    protocol.data_received(GET + GET)  # the second waits for the answer to the first
    loop.turns()
    assert len(wire.pieces) == 2
    head, _, body = wire.pieces[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert protocol.server_state.total_requests == 2


def test_the_answer_to_head_has_no_body(protocol: Protocol, wire: Wire, loop: Moments) -> None:
    protocol.data_received(GET.replace(b"GET", b"HEAD"))
    loop.turns()
    (piece,) = wire.pieces
    head, _, body = piece.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\ncontent-length: " in head
    assert body == b""


def test_who_asks_for_it_is_told_that_the_connection_closes(
    protocol: Protocol, wire: Wire, loop: Moments
) -> None:
    protocol.data_received(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    loop.turns()
    assert b"connection: close\r\n" in wire.pieces[0]
    assert wire.closed


def test_a_header_cannot_hold_another(protocol: Protocol, wire: Wire, loop: Moments) -> None:
    protocol.data_received(GET)
    exchange = Exchange(protocol.cycle)
    for value in (b"x\r\nset-cookie: a=b", b"x\nset-cookie: a=b", b"x\rset-cookie: a=b"):
        with pytest.raises(RuntimeError, match="end of a line"):
            exchange.answer(200, [(b"etag", value)], b"")
    assert wire.pieces == []
    loop.turns()


def test_nothing_is_sent_to_who_has_gone(protocol: Protocol, wire: Wire, loop: Moments) -> None:
    protocol.data_received(GET)
    protocol.connection_lost(None)
    loop.turns()
    assert wire.pieces == []


def test_a_connection_is_kept_while_it_is_used(
    protocol: Protocol, wire: Wire, loop: Moments
) -> None:
    for _ in range(3):
        protocol.data_received(GET)
        loop.turns()
        loop.turns(KEEP_ALIVE * 0.6)
        assert not wire.closed
    assert len(wire.pieces) == 3
    loop.turns(KEEP_ALIVE * 0.6)
    assert wire.closed


def test_a_head_that_does_not_become_whole_ends_the_connection(
    protocol: Protocol, wire: Wire, loop: Moments
) -> None:
    protocol.data_received(GET)
    loop.turns()
    loop.turns(protocol.patience + 1)
    assert not wire.closed  # nothing is awaited between two requests
    protocol.data_received(GET[:20])
    loop.turns(protocol.patience * 0.6)
    protocol.data_received(GET[20:25])
    loop.turns(protocol.patience * 0.6)
    assert wire.closed


def test_a_connection_without_a_request_is_closed(
    protocol: Protocol, wire: Wire, loop: Moments
) -> None:
    loop.turns(protocol.patience + 1)
    assert wire.closed


def test_a_body_is_at_hand_once_all_of_it_has_come(
    protocol: Protocol, wire: Wire, loop: Moments
) -> None:
    head = b"PUT /v1/nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
    protocol.data_received(head + b"ab")
    exchange = Exchange(protocol.cycle)
    assert exchange.body() is None
    protocol.data_received(b"cd")
    assert exchange.body() == b"abcd"
    loop.turns()


def test_a_body_that_waits_for_leave_is_received(
    protocol: Protocol, wire: Wire, loop: Moments
) -> None:
    head = b"PUT /v1/nothing HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    protocol.data_received(head + b"content-length: 0\r\n\r\n")
    assert Exchange(protocol.cycle).body() is None
    loop.turns()
