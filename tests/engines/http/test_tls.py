"""http:// where TLS is spoken: the error says so, whatever the other side makes of plain words."""

import socket
import ssl
import threading
from collections.abc import Callable

import pytest
import trustme

from bide.engines.http.connection import Address
from bide.engines.http.events import EventStream
from bide.engines.registry import opener
from bide.model.errors import OutcomeUnknown, StoreError, StoreUnavailable

Speak = Callable[[socket.socket], None]
PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class Server:
    """Has a function of its own for each connection."""

    def __init__(self, *speak: Speak) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._speak = speak
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for speak in self._speak:
            connection, _ = self._listening.accept()
            with connection:
                speak(connection)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()


@pytest.fixture(scope="module")
def tls() -> Speak:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)

    def speak(connection: socket.socket) -> None:
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            pass  # plain words, at which OpenSSL hangs up; or the other side has heard enough

    return speak


def in_plain_words(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(PLAIN)


def with_an_alert(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28")


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)


def test_who_hangs_up_at_plain_words_and_speaks_tls(tls: Speak) -> None:
    with Server(tls, tls) as server:
        url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(StoreUnavailable) as told:
            opener(url)()
    https = url.replace("http:", "https:")
    assert str(told.value) == f"{url} speaks TLS: use {https}"


def test_a_stream_of_events_that_begins_where_tls_is_spoken(tls: Speak) -> None:
    with Server(tls, tls) as server:
        stream = EventStream(Address(False, "127.0.0.1", server.port, "", ""), "")
        with pytest.raises(StoreUnavailable, match="speaks TLS: use https://127"):
            stream.next()


@pytest.mark.parametrize("first", [in_plain_words, with_an_alert, hang_up])
def test_whatever_is_answered_first(tls: Speak, first: Speak) -> None:
    for second in (tls, with_an_alert):
        with Server(first, second) as server, pytest.raises(StoreUnavailable, match="speaks TLS"):
            opener(f"http://:s3cret@127.0.0.1:{server.port}/bide")()


def test_who_speaks_none_is_told_of_as_before() -> None:
    with Server(hang_up, hang_up) as server, pytest.raises(OutcomeUnknown, match="did not answer"):
        opener(f"http://127.0.0.1:{server.port}")()
    with Server(in_plain_words, hang_up) as server, pytest.raises(StoreError, match="status 400"):
        opener(f"http://127.0.0.1:{server.port}")()


def test_a_port_that_accepts_and_is_silent_is_given_up_before_the_timeout_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bide.engines.http.connection.CONNECTING", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = opener(f"https://127.0.0.1:{silent.getsockname()[1]}?timeout=1h")
        with pytest.raises(StoreUnavailable, match="timed out"):
            store()
