"""Answers that are too long, or break off."""

import socket
import threading

import pytest

from bide.engines.http import channel
from bide.engines.registry import opener
from bide.model.errors import StoreError, StoreUnavailable


def answering(head: bytes, piece: bytes, times: int) -> str:
    """Return the URL of a server that answers one request with a head and many equal pieces."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listening, listening.accept()[0] as accepted:
            accepted.recv(65_536)
            try:
                accepted.sendall(head)
                for _ in range(times):
                    accepted.sendall(piece)
                accepted.recv(1)  # until the client closes it
            except OSError:
                pass  # the client has heard enough

    threading.Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}?timeout=20s"


def test_an_answer_that_is_announced_too_long_is_not_read() -> None:
    url = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n", b"x", 1)
    with pytest.raises(StoreError, match="answered with more than 268,435,456 bytes"):
        opener(url)()


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"10000\r\n" + b"x" * 65_536 + b"\r\n",
        ),
    ],
    ids=["until it closes", "chunked"],
)
def test_an_answer_without_end_is_read_up_to_a_bound(
    head: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_ANSWER", 1 << 20)
    with pytest.raises(StoreError, match="answered with more than 1,048,576 bytes"):
        opener(answering(head, piece, 1_000))()


def breaking_off(head: bytes) -> int:
    """Return the port of a server that answers one request with a head and one byte of the body."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listening, listening.accept()[0] as accepted:
            accepted.recv(65_536)
            accepted.sendall(head + b"{")

    threading.Thread(target=run, daemon=True).start()
    port: int = listening.getsockname()[1]
    return port


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
    with pytest.raises(StoreUnavailable, match="did not answer"):
        opener(f"http://127.0.0.1:{breaking_off(head)}")()
