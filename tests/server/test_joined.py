"""The head of an answer waits for its body, and never for longer than a turn of the loop."""

import asyncio
from collections.abc import Iterator

import pytest

from bide.server.protocol import Joined

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire(asyncio.Transport):
    """Remembers what was written, and in how many pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs only when a test has it take a turn."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def joined(wire: Wire, loop: asyncio.AbstractEventLoop) -> Joined:
    return Joined(wire, loop)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def test_an_answer_is_one_piece(
    wire: Wire, joined: Joined, loop: asyncio.AbstractEventLoop
) -> None:
    for _ in range(2):  # one after the other on the same connection
        joined.write(HEAD)
        joined.write(b"ok")
    _turn(loop)
    assert wire.pieces == [HEAD + b"ok"] * 2


def test_a_head_without_a_body_yet_is_sent(
    wire: Wire, joined: Joined, loop: asyncio.AbstractEventLoop
) -> None:
    joined.write(HEAD)
    assert wire.pieces == []
    _turn(loop)
    assert wire.pieces == [HEAD]
    joined.write(b"data: 1\n\n")
    assert wire.pieces == [HEAD, b"data: 1\n\n"]


def test_what_is_no_head_goes_at_once(wire: Wire, joined: Joined) -> None:
    joined.write(b"HTTP/1.1 is what this text begins with")
    joined.write(b"and so it ends\r\n\r\n")
    assert len(wire.pieces) == 2


def test_closing_sends_the_head(wire: Wire, joined: Joined) -> None:
    joined.write(HEAD)
    joined.close()
    assert wire.pieces == [HEAD]
    assert wire.closed
