"""http:// where TLS is spoken: the error asks for https://, whatever the other side answers."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
import trustme

from bide.engines.http.connection import HttpAddress
from bide.engines.http.events import EventStream
from bide.engines.registry import opener
from bide.model.errors import OutcomeUnknown, StoreError, StoreUnavailable

Speak = Callable[[socket.socket], None]
PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
HINT = r"does it speak TLS \(https://\)\?"


class Server:
    """Has a function of its own for a connection."""

    def __init__(self, speak: Speak) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._speak = speak
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            self._speak(connection)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()


def by_openssl(connection: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with suppress(OSError):  # plain words
        context.wrap_socket(connection, server_side=True)


def in_plain_words(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(PLAIN)


def with_an_alert(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28")


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)


@pytest.mark.parametrize("speak", [by_openssl, in_plain_words, with_an_alert, hang_up])
def test_whatever_plain_words_are_answered_with_nothing_is_unknown(speak: Speak) -> None:
    with Server(speak) as server, pytest.raises(StoreError, match=HINT) as told:
        opener(f"http://:s3cret@127.0.0.1:{server.port}/bide")()
    assert not isinstance(told.value, OutcomeUnknown)


def test_a_stream_of_events_that_begins_where_tls_is_spoken() -> None:
    with Server(by_openssl) as server:
        stream = EventStream(HttpAddress(False, "127.0.0.1", server.port, "", ""), "")
        with pytest.raises(StoreUnavailable, match=HINT):
            stream.next()


def test_a_port_that_accepts_and_is_silent_is_given_up_before_the_timeout_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bide.engines.http.connection.CONNECTING", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = opener(f"https://127.0.0.1:{silent.getsockname()[1]}?timeout=1h")
        with pytest.raises(StoreUnavailable, match="timed out"):
            store()
