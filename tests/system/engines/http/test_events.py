"""The stream of events: how it is read, and when it is asked for again."""

import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from bide.engines.http import address_of
from bide.engines.http.channel import Channel
from bide.engines.http.connection import HttpAddress
from bide.engines.http.events import PAUSE, PAUSE_IF_DENIED, EventStream, HttpNotifier
from bide.model.errors import StoreUnavailable
from tests.system.engines.http.test_channel import (
    Server,
    after,
    answering,
    breaking_off,
    byte_of,
    echo,
)
from tests.system.engines.http.test_engine import Script


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(echo)
    yield server
    server.close()


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    yield script
    script.close()


@pytest.mark.parametrize(
    ("status", "seconds"), [(401, PAUSE_IF_DENIED), (429, PAUSE), (503, PAUSE)]
)
def test_a_server_that_refuses_the_token_is_asked_less_often(
    script: Script, status: int, seconds: float
) -> None:
    class Pause(threading.Event):
        lasted = 0.0

        def wait(self, timeout: float | None = None) -> bool:
            self.lasted = timeout or 0.0
            self.set()
            return True

    script.answers[:] = [(status, b"{}")]
    notifier = HttpNotifier(address_of(urlsplit(script.url))[0], 30)
    notifier._closed = pause = Pause()
    assert notifier.is_listening, "it has not been refused yet"
    assert notifier.listen() == []
    assert pause.lasted == seconds
    assert not notifier.is_listening


def test_a_refusal_of_the_events_that_breaks_off_is_a_refusal() -> None:
    """Else a program would hear no hint any more until its end."""
    head = b"HTTP/1.1 503 Away\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
    events = EventStream(HttpAddress(False, "127.0.0.1", breaking_off(head), "", ""), "counts=0")
    with pytest.raises(StoreUnavailable, match="it answered with status 503"):
        events.next()


def test_a_line_of_events_without_end_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bide.engines.http.events.MAX_EVENT_LINE", 1_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    url = answering(head + b"x" * 10_000 + b"\nevent: put\ndata: 1\n", b"\n", 1)
    events = EventStream(HttpAddress(False, "127.0.0.1", urlsplit(url).port, "", ""), "counts=0")
    assert events.next() == ("put", b"1\n")
    events.close()
    events.drop()


def test_events_come_in_whatever_pieces(server: Server) -> None:
    head = b"HTTP/1.1 200 OK\r\nbide-request: MARK\r\ntransfer-encoding: chunked\r\n\r\n"
    lines = b": hello\n\nevent: hint\ndata: 1\n\nevent: hint\ndata: 2\n\n"
    server.respond = lambda mark, data: byte_of(
        head.replace(b"MARK", mark) + b"".join(b"1\r\n%c\r\n" % byte for byte in lines)
    )
    events = EventStream(server.address, "counts=0")
    assert [events.next(), events.next()] == [("hint", b"1\n"), ("hint", b"2\n")]
    events.close()
    with pytest.raises(StoreUnavailable):
        events.next()


def test_a_notifier_listens_again_after_a_stream_that_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.engines.http.events.PAUSE", 0.001)
    head = b"HTTP/1.1 200 OK\r\nbide-request: MARK\r\n\r\n"
    hint = b'event: hint\ndata: {"queue": "q", "wake_in": 0}\n\n'
    server.respond = after(head, hint)
    notifier = HttpNotifier(server.address, 30)
    notifier._has_failed = True
    assert not notifier.is_listening
    ((queue, _),) = notifier.listen()
    assert queue == "q"
    assert notifier.is_listening
    notifier.close()
    assert notifier.listen() == []
    assert not notifier.is_listening


def test_the_events_have_a_connection_of_their_own_after_an_interrupt(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b"HTTP/1.1 200 OK\r\nbide-request: MARK\r\n\r\n"
    server.respond = after(head, b"event: hint\ndata: 1\n\nevent: hi")
    events = EventStream(server.address, "counts=0")
    assert events.next() == ("hint", b"1\n")

    def interrupt(channel: Channel) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            events.next()
    assert events.next() == ("hint", b"1\n")
    assert server.connections == 2
    events.drop()
