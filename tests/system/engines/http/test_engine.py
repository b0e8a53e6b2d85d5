"""What the engine makes of answers that a good server does not give."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import msgspec
import pytest

import bide
from bide.engines.http.channel import Channel
from bide.engines.http.engine import HttpEngine
from bide.engines.port import Engine, Identity, PartlyDone
from bide.engines.registry import mask, opener
from bide.model.commands import Count, Find, Put
from bide.model.errors import (
    NotAStore,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from bide.model.message import Item
from bide.model.replies import Found, Outcomes, QueueSettings
from bide.testing.engine_hooks import http_socket

ABOUT = msgspec.json.encode({"capabilities": {"durable": True}})
PUT = Put("q", [Item("a", b"1")])


class Script:
    """A server that answers what it is told to: a status and a body, or nothing at all."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.answers: list[tuple[int, bytes] | None] = [(200, ABOUT)]
        self.heads: list[str] = []
        self.connections = 0
        self.hang_up = False
        self.hung_up = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def then(self, status: int, content: Any, *, packed: bool = True) -> None:
        encode = msgspec.msgpack.encode if packed else msgspec.json.encode
        self.answers.append((status, encode(content)))

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rb") as stream, suppress(ConnectionError):
                while self._answer(connection, stream):
                    pass
            self.hung_up.release()

    def _answer(self, connection: socket.socket, stream: Any) -> bool:
        head, mark = b"", b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := stream.readline()):
                return False
            head += line
            if line.startswith(b"bide-request: "):
                mark = line
        self.heads.append(head.decode())
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        stream.read(int(length or 0))
        answer = self.answers.pop(0)
        if answer is None:
            return False
        status, data = answer
        is_last = self.hang_up  # before the answer, behind which the test says it of the next one
        connection.sendall(
            b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n" % (status, mark, len(data)) + data
        )
        return not is_last

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    yield script
    script.close()


@pytest.fixture
def engine(script: Script) -> Iterator[Engine]:
    engine = opener(script.url)()
    yield engine
    engine.close()


def test_what_was_done_of_a_batch_is_told(script: Script, engine: Engine) -> None:
    failed = {"type": "failed", "error": "StoreFull", "detail": "the disk is full"}
    done = {"type": "outcomes", "outcomes": []}
    script.then(200, {"replies": [done, failed], "now": 5})
    with pytest.raises(PartlyDone) as told:
        engine.execute([PUT, PUT], 5)
    first, second = told.value.outcomes
    assert first == Outcomes([])
    assert isinstance(second, StoreFull)
    script.then(200, {"replies": [failed, failed], "now": 5})
    with pytest.raises(StoreFull, match="the disk is full"):
        engine.execute([PUT, PUT], 5)

    busy = {"type": "failed", "error": "StoreBusy", "detail": "locked"}
    script.then(200, {"replies": [busy, failed], "now": 5})
    with pytest.raises(PartlyDone) as told:
        engine.execute([PUT, PUT], 5)
    assert list(map(type, told.value.outcomes)) == [StoreBusy, StoreFull]


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (503, {"detail": "stopping", "error": "StoreUnavailable"}, [StoreUnavailable] * 2),
        (429, {"detail": "too fast"}, [StoreUnavailable] * 2),
        (400, {"detail": "no", "error": "InvalidArgument"}, [bide.InvalidArgument] * 2),
        (
            200,
            {
                "replies": [
                    {"type": "found", "messages": [None]},
                    {"type": "failed", "error": "StoreBusy", "detail": "locked"},
                ],
                "now": 5,
            },
            [Found, StoreBusy],
        ),
    ],
)
def test_a_failure_to_ask_again_is_that_of_the_reads_alone(
    script: Script, engine: Engine, status: int, answer: Any, expected: list[type]
) -> None:
    done, put_off = {"type": "outcomes", "outcomes": []}, {"type": "found", "messages": []}
    script.then(200, {"replies": [put_off, done, put_off], "now": 5})
    script.then(status, answer, packed=status == 200)
    with pytest.raises(PartlyDone) as told:
        engine.execute([Find("q", ["a"]), PUT, Find("q", ["b"])], 5)
    first, second, third = told.value.outcomes
    assert second == Outcomes([])
    assert [type(first), type(third)] == expected


@pytest.mark.parametrize(
    ("status", "problem", "error"),
    [
        (400, {"detail": "priority", "error": "InvalidArgument"}, bide.InvalidArgument),
        (401, {"detail": "the token was revoked"}, bide.AccessDenied),
        (403, {"detail": "the token has no scope 'admin'"}, bide.AccessDenied),
        (429, {"detail": "too fast"}, StoreUnavailable),
        (500, "a proxy's page", OutcomeUnknown),
        (502, "a proxy's page", OutcomeUnknown),
        (524, "a network's page", OutcomeUnknown),
        (503, {"detail": "stopping", "error": "Closed"}, bide.Closed),
        (507, {"detail": "full"}, StoreFull),
        (500, {"detail": "x", "error": "__import__"}, StoreError),
    ],
)
def test_problems_become_the_errors_that_they_stand_for(
    script: Script, engine: Engine, status: int, problem: Any, error: type[Exception]
) -> None:
    script.then(status, problem, packed=False)
    with pytest.raises(error):
        engine.execute([PUT])


def test_an_answer_that_is_no_utf_8_is_one_that_is_not_understood(
    script: Script, engine: Engine
) -> None:
    script.answers.append((502, b'{"detail": "\xfcberlastet"}'))
    with pytest.raises(OutcomeUnknown, match="answered with status 502"):
        engine.execute([PUT])
    name = msgspec.msgpack.encode({"replies": [{"type": "names", "names": ["qqq"]}], "now": 5})
    script.answers.append((200, name.replace(b"qqq", b"\xfc\xfc\xfc")))
    with pytest.raises(OutcomeUnknown, match="does not understand"):
        engine.execute([PUT])


def test_no_answer_is_an_unknown_outcome(script: Script, engine: Engine) -> None:
    script.answers.append(None)
    with pytest.raises(OutcomeUnknown, match="may have done"):
        engine.execute([PUT])
    script.then(200, {"replies": [], "now": 5})
    assert engine.execute([], 5) == []


def reply_of(name: str) -> dict[str, Any]:
    outcome = {"id": name, "done": True, "state": "delayed", "due": 9}
    return {"replies": [{"type": "outcomes", "outcomes": [outcome]}], "now": 5}


AGAIN = [Identity("lane:a", 1, 0, repeated=True)]
PAGE = "<html>Bad Gateway</html>"
OF_BIDE = {"type": "https://bide.example/docs#problem-overloaded", "detail": "all are busy"}


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_change_that_is_sent_again_waits_for_the_server_behind_a_proxy(
    script: Script, status: int
) -> None:
    with closing(opener(f"{script.url}?reconnect=60s")()) as engine:
        for _ in range(3):
            script.then(status, PAGE, packed=False)
        script.then(200, reply_of("a"))
        (reply,) = engine.execute([PUT], 5, AGAIN)
        assert isinstance(reply, Outcomes)
        assert len(script.heads) == 1 + 4


def test_a_change_that_a_proxy_has_not_passed_on_waits(script: Script, engine: Engine) -> None:
    for _ in range(3):
        script.then(503, PAGE, packed=False)
    script.then(200, reply_of("a"))
    assert engine.execute([PUT], 5)


@pytest.mark.parametrize("status", [502, 504])
def test_a_change_that_may_have_been_carried_out_is_not_sent_again_by_the_engine(
    script: Script, engine: Engine, status: int
) -> None:
    script.then(status, PAGE, packed=False)
    with pytest.raises(OutcomeUnknown):  # the lane sends it again, and says so
        engine.execute([PUT])
    assert len(script.heads) == 1 + 1


@pytest.mark.parametrize("problem", [OF_BIDE, {"detail": "x", "error": "StoreUnavailable"}])
def test_a_refusal_of_bides_own_server_is_not_waited_for(
    script: Script, engine: Engine, problem: dict[str, str]
) -> None:
    script.then(503, problem, packed=False)
    with pytest.raises(StoreUnavailable):
        engine.execute([PUT], 5, AGAIN)
    assert len(script.heads) == 1 + 1


def test_a_read_whose_answer_was_lost_is_sent_again(script: Script, engine: Engine) -> None:
    script.answers.append(None)
    script.then(502, PAGE, packed=False)
    script.then(200, {"replies": [{"type": "found", "messages": [None]}], "now": 5})
    assert engine.execute([Find("q", ["a"])], 5) == [Found([None])]


def test_once_the_time_is_over_each_call_tries_once_until_one_is_answered(script: Script) -> None:
    with closing(opener(f"{script.url}?reconnect=0")()) as engine:
        for _ in range(2):
            script.then(503, PAGE, packed=False)
            with pytest.raises(StoreUnavailable):
                engine.execute([PUT])
        assert len(script.heads) == 1 + 2


def has_heard_the_end(engine: Engine) -> bool:
    """Wait until the end of the connection has come to this side of it."""
    assert isinstance(engine, HttpEngine)
    poll = select.poll()
    poll.register(http_socket(engine), select.POLLIN)
    return bool(poll.poll(20_000))


def test_a_connection_that_the_server_closed_is_opened_again(
    script: Script, engine: Engine
) -> None:
    script.hang_up = True
    for _ in range(3):
        script.then(200, {"replies": [], "now": 5})
        assert engine.execute([], 5) == []
        assert script.hung_up.acquire(timeout=60)
        assert has_heard_the_end(engine)
    assert script.connections >= 3


def test_a_connection_that_is_closed_while_a_request_is_sent_is_opened_again(
    script: Script, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Channel, "is_idle", True)
    script.hang_up = True
    script.then(200, {"replies": [], "now": 5})
    assert engine.execute([], 5) == []
    assert script.hung_up.acquire(timeout=60)
    reply = {"type": "settings", "paused": False, "keep": 0, "wake": None}
    script.then(200, {"replies": [reply], "now": 5})
    large = Put("q", [Item("a", b"x" * (8 << 20))])  # more than is sent before the end is noticed
    assert isinstance(engine.execute([large], 5)[0], QueueSettings)


def test_after_an_interrupt_the_next_request_has_a_connection_of_its_own(
    script: Script, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Channel) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        script.then(200, {"replies": [], "now": 5})
    with monkeypatch.context() as patched:
        patched.setattr(Channel, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.execute([], 5)
    monkeypatch.setattr(Channel, "is_idle", True)
    assert engine.execute([], 5) == []


def test_times_are_told_by_this_machines_clock(script: Script, engine: Engine) -> None:
    hours = 3_600_000
    theirs = time.time_ns() // 1_000_000 - 5 * hours
    reply = {"type": "settings", "paused": False, "keep": 0, "wake": theirs + hours}
    script.then(200, {"replies": [reply], "now": theirs})
    (settings,) = engine.execute([Count("q")])
    assert isinstance(settings, QueueSettings)
    assert settings.wake is not None
    assert abs(settings.wake - (time.time_ns() // 1_000_000 + hours)) < 5_000


def test_somebody_else_is_no_store(script: Script) -> None:
    script.answers[:] = [(200, b"<html>")]
    with pytest.raises(NotAStore, match="is not a bide server"):
        opener(script.url)()


def test_a_server_cannot_recover_what_a_claim_here_has_leased(script: Script) -> None:
    script.answers[:] = [(200, msgspec.json.encode({"capabilities": {"recovers": True}}))]
    engine = opener(script.url)()
    assert not engine.capabilities.recovers
    engine.close()


def test_the_token_is_sent_and_never_shown(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (script.url.replace("//", "//:s3cret@"), script.url.replace("//", "//s3cret@")):
        script.answers[:] = [(200, ABOUT), (401, b'{"detail": "no"}')]
        engine = opener(url)()
        assert "authorization: Bearer s3cret" in script.heads[-1]
        with pytest.raises(StoreError) as refused:
            engine.execute([PUT])
        assert "s3cret" not in f"{refused.value!r} {engine!r} {mask(url)}"
        engine.close()
    monkeypatch.setenv("BIDE_TOKEN", "other")
    script.answers[:] = [(200, ABOUT)]
    opener(script.url)().close()
    assert "authorization: Bearer other" in script.heads[-1]


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://host:x",
        "http://host?nonsense=1",
        "http://host?timeout=0",
        "http:///p",
        "http://a..b",
        f"http://{'x' * 64}.example",
        "http://two words",
        "http://host/\u00fc",
        "http://host/two words",
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(bide.InvalidArgument):
        opener(url)


def test_nobody_there() -> None:
    with pytest.raises(StoreUnavailable, match="is bide serve running"):
        opener("http://127.0.0.1:9")()
