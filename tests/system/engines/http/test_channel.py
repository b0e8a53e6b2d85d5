"""Answers as they come over the network: long, broken off, encrypted or not."""

import itertools
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
import trustme

from bide.engines.http import channel
from bide.engines.http import channel as module
from bide.engines.http import connection as connections
from bide.engines.http.channel import PACE, Channel
from bide.engines.http.connection import MARK, HttpAddress, HttpConnection
from bide.engines.http.events import EventStream
from bide.engines.registry import opener
from bide.model.errors import NotAStore, OutcomeUnknown, StoreError, StoreUnavailable
from bide.model.limits import MAX_HEAD, MAX_INTERIM
from tests.effort import effort

Respond = Callable[[bytes, bytes], Iterator[bytes]]
"""Yields the pieces of an answer to a request, given its mark and its body."""

JSON = "application/json"


class Server:
    """Answers each request by a function, which may be replaced."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = HttpAddress(False, "127.0.0.1", self._listening.getsockname()[1], "", "")
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):  # the test is over
            while True:
                accepted, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError), accepted, accepted.makefile("rb") as stream:
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    if not (line := stream.readline()):
                        return
                    head += line
                fields = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:-2])
                data = stream.read(int(fields.get(b"content-length", b"0")))
                for piece in self.respond(fields[MARK], data):
                    accepted.sendall(piece)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def echo(mark: bytes, data: bytes) -> Iterator[bytes]:
    head = b"HTTP/1.1 200 OK\r\nBide-Request: %b\r\nContent-Length: %d\r\n\r\n" % (mark, len(data))
    yield head + data


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(echo)
    yield server
    server.close()


@pytest.fixture
def connection(server: Server) -> Iterator[HttpConnection]:
    connection = HttpConnection(server.address, 20.0)
    yield connection
    connection.close()


def asked(connection: HttpConnection, data: bytes) -> bytes:
    """Send a request that changes something, and return the body of the answer."""
    status, body = connection.ask("POST", "/v1/batch", data, JSON)
    assert status == 200
    return body


def byte_by_byte(mark: bytes, data: bytes) -> Iterator[bytes]:
    for whole in echo(mark, data):
        yield from (whole[at : at + 1] for at in range(len(whole)))


def after_interim_answers(mark: bytes, data: bytes) -> Iterator[bytes]:
    yield b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * MAX_INTERIM
    yield from echo(mark, data)


def in_chunks(mark: bytes, data: bytes) -> Iterator[bytes]:
    chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in data)
    head = b"HTTP/1.1 200 OK\r\nbide-request: %b\r\ntransfer-encoding: chunked\r\n\r\n" % mark
    yield from byte_of(head + chunks + b"0\r\nx-field: y\r\n\r\n")


def byte_of(whole: bytes) -> Iterator[bytes]:
    return (whole[at : at + 1] for at in range(len(whole)))


@pytest.mark.parametrize("respond", [echo, byte_by_byte, after_interim_answers, in_chunks])
def test_an_answer_is_read_in_whatever_form_it_comes(
    server: Server, connection: HttpConnection, respond: Respond
) -> None:
    server.respond = respond
    assert [asked(connection, data) for data in (b"1", b"two", b"")] == [b"1", b"two", b""]
    assert server.connections == 1


def after(head: bytes, more: bytes = b"") -> Respond:
    """Return what answers with a head, which may contain the mark, and something behind it."""
    return lambda mark, data: iter((head.replace(b"MARK", mark), more))


BAD = {
    "no HTTP": after(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "another version": after(b"HTTP/2.0 200 OK\r\n\r\n"),
    "a coding of transfer": after(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n"),
    "two lengths": after(
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"12"
    ),
    "no length": after(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"),
    "no size of a chunk": after(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"x\r\n0\r\n\r\n"
    ),
    "a chunk that is too long": after(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nabc\r\n0\r\n\r\n"
    ),
    "a head without end": after(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD),
    "interim answers without end": after(b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM + 1)),
}


@pytest.mark.parametrize("respond", BAD.values(), ids=BAD)
def test_what_is_no_answer_is_an_unknown_outcome_and_costs_the_connection(
    server: Server, connection: HttpConnection, respond: Respond
) -> None:
    server.respond = respond
    with pytest.raises(OutcomeUnknown, match="did not answer"):
        asked(connection, b"1")
    server.respond = echo
    assert asked(connection, b"2") == b"2"
    assert server.connections == 2


def test_an_answer_of_another_request_is_never_used(
    server: Server, connection: HttpConnection
) -> None:
    server.respond = after(
        b"HTTP/1.1 200 OK\r\nbide-request: another\r\ncontent-length: 1\r\n\r\n", b"1"
    )
    with pytest.raises(OutcomeUnknown, match="gave an answer to another request"):
        asked(connection, b"1")
    with pytest.raises(StoreUnavailable, match="gave an answer to another request"):
        connection.ask("GET", "/v1", None, JSON)
    server.respond = after(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n", b"1")
    with pytest.raises(OutcomeUnknown, match="drop the header bide-request"):
        asked(connection, b"1")
    with pytest.raises(NotAStore, match="is not a bide server, or an older one"):
        connection.ask("GET", "/v1", None, JSON)
    server.respond = echo
    assert asked(connection, b"2") == b"2"
    assert server.connections == 5


def test_an_answer_that_nobody_asked_for_is_never_used(
    server: Server, connection: HttpConnection
) -> None:
    def twice(mark: bytes, data: bytes) -> Iterator[bytes]:
        yield from (whole * 2 for whole in echo(mark, data))

    server.respond = twice
    assert [asked(connection, b"%d" % number) for number in range(3)] == [b"0", b"1", b"2"]
    assert server.connections == 3


def test_a_refusal_by_what_stands_before_the_server_has_no_mark(
    server: Server, connection: HttpConnection
) -> None:
    server.respond = after(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\n", b"away")
    assert connection.ask("POST", "/v1/batch", b"1", JSON) == (502, b"away")
    server.respond = echo
    assert asked(connection, b"2") == b"2"
    assert server.connections == 2


class Watch:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self._seconds = itertools.count()

    def monotonic(self) -> float:
        return float(next(self._seconds))


def test_a_whole_answer_has_to_come_within_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second piece comes too late."""
    connection = HttpConnection(server.address, 2.0)
    monkeypatch.setattr(module, "time", Watch())
    server.respond = lambda mark, data: byte_of(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000)
    with pytest.raises(OutcomeUnknown, match="no answer in time"):
        asked(connection, b"1")


class Fed(socket.socket):
    """Has a head to read, and then whatever is asked for."""

    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (40 * PACE)

    def recv(self, size: int, flags: int = 0) -> bytes:
        head, self.head = self.head, b""
        return head or b"x" * size


def test_a_long_answer_has_as_much_time_as_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece takes a second here, and 40 times as many as are read in 20 seconds are read."""
    monkeypatch.setattr(module, "time", Watch())
    monkeypatch.setattr(module, "_PIECE", PACE // 8)
    with Fed() as fed:
        assert len(Channel(fed, 20.0).answer().body()) == 40 * PACE


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, RuntimeError, OSError])
def test_after_an_interrupt_anywhere_the_next_request_gets_its_own_answer(
    server: Server, error: type[BaseException]
) -> None:
    """Raises it at each step of the client, one after the other."""
    by_instruction = effort(0, 1)
    struck, places = 0, itertools.count()
    for place in places:
        connection = HttpConnection(server.address, 20.0)
        assert asked(connection, b"before") == b"before"
        try:
            with interrupted(error(), place, by_instruction=bool(by_instruction)):
                assert asked(connection, b"interrupted") == b"interrupted"
        except (error, OutcomeUnknown, StoreUnavailable):
            struck += 1
        else:
            break
        finally:
            assert asked(connection, b"after") == b"after"
            assert asked(connection, b"last") == b"last"
            connection.close()
    assert struck > 50


class interrupted:
    """Raise an error at a step of the HTTP client while the block runs.

    Args:
        error: what a signal handler would raise.
        place: how many steps go before it.
        by_instruction: count instructions of the interpreter, not lines.
    """

    FILES = frozenset((module.__file__, connections.__file__))

    def __init__(self, error: BaseException, place: int, *, by_instruction: bool) -> None:
        self._error = error
        self._left = place
        self._kind = "opcode" if by_instruction else "line"

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = self._kind == "opcode"
        if event == self._kind:
            self._left -= 1
            if self._left < 0:
                sys.settrace(None)
                frame.f_trace = None
                raise self._error
        return self._trace


def test_a_time_out_of_a_signal_handler_is_not_one_of_the_network(
    server: Server, connection: HttpConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before the time of the answer is over."""
    mine = TimeoutError("the handler took too long")

    def strike(channel: socket.socket, size: int) -> bytes:
        raise mine

    with monkeypatch.context() as patched:
        patched.setattr(module, "watch", lambda descriptor: lambda: [])
        with Fed() as fed:
            patched.setattr(Fed, "recv", strike)
            patched.setattr(connection, "_open", lambda: Channel(fed, 20.0))
            patched.setattr(Channel, "send", lambda channel, request: None)
            with pytest.raises(TimeoutError) as raised:
                asked(connection, b"1")
    assert raised.value is mine
    assert asked(connection, b"2") == b"2"


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


Speak = Callable[[socket.socket], None]
PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
HINT = r"does it speak TLS \(https://\)\?"


class SpeakingServer:
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

    def __enter__(self) -> "SpeakingServer":
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
    with SpeakingServer(speak) as server, pytest.raises(StoreError, match=HINT) as told:
        opener(f"http://:s3cret@127.0.0.1:{server.port}/bide")()
    assert not isinstance(told.value, OutcomeUnknown)


def test_a_stream_of_events_that_begins_where_tls_is_spoken() -> None:
    with SpeakingServer(by_openssl) as server:
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
