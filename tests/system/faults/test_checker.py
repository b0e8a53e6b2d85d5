"""The checker and the proxy of the fault tests do what they say."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from bide import Counts, Flow, Sizes
from tests.proxy import Fault, Faults, Proxy, before_all
from tests.servers import PATIENCE, free_port
from tests.system.faults.checker import check, check_counts
from tests.system.faults.journal import Event, Journal, read
from tests.waiting import until


def put(*ids: str, at: int = 0) -> list[Event]:
    return [{"tries": "put", "ids": ids, "at": at}, {"did": "put", "ids": ids, "at": at}]


def claim(id: str, now: int, until: int, token: int) -> Event:
    return {"did": "claim", "now": now, "token": token, "messages": [[id, until]], "at": now}


def ack(id: str, at: int, token: int = 1, done: bool = True) -> list[Event]:
    facts = {"id": id, "token": token, "at": at}
    return [{"tries": "ack", **facts}, {"did": "ack", "done": done, **facts}]


def cancel(id: str, at: int, done: bool = True) -> list[Event]:
    return [
        {"tries": "cancel", "id": id, "at": at},
        {"did": "cancel", "id": id, "done": done, "at": at},
    ]


SOUND: list[Event] = [
    *put("a", "b", "c", "d"),
    claim("a", 10, 20, 1),
    *ack("a", 15, 1),
    *cancel("b", 12),
    claim("c", 10, 20, 2),
    claim("c", 20, 30, 3),
    *ack("c", 21, 2, done=False),
    *ack("c", 22, 3),
    claim("d", 10, 20, 4),
    {"tries": "release", "id": "d", "token": 4, "at": 12},
    claim("d", 13, 33, 5),
    {"tries": "release", "id": "d", "token": 5, "at": 13},
    claim("d", 13, 23, 6),
    *ack("d", 14, 6),
]


def closed(group: str, at: int) -> list[Event]:
    return [
        {"tries": "close", "group": group, "at": at},
        {"did": "close", "group": group, "at": at},
    ]


def test_a_delivery_after_its_group_was_closed_is_found() -> None:
    events: list[Event] = [
        {"tries": "put", "ids": ["a", "b", "c"], "group": "g", "at": 0},
        {"did": "put", "ids": ["a", "b"], "group": "g", "at": 0},
        claim("a", 10, 20, 1),
        *closed("g", 15),
    ]
    assert check([events]) == []
    late = [*events, claim("b", 16, 26, 2)]
    assert check([late]) == ["b was delivered at 16, after its group was closed at 15"]


def test_a_sound_journal_has_no_problems() -> None:
    assert check([SOUND]) == []
    assert check([SOUND[:5], SOUND[5:]]) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (put("lost"), "lost was confirmed and never delivered"),
        ([*put("lost"), {"tries": "claim", "at": 1}], "lost was confirmed and never delivered"),
        (
            [*put("x"), claim("x", 10, 20, 1), claim("x", 19, 30, 2)],
            "x was claimed at 19, but leased until 20",
        ),
        (
            [
                *put("x"),
                claim("x", 10, 20, 1),
                {"did": "extend", "id": "x", "token": 1, "until": 40, "at": 15},
                claim("x", 39, 50, 2),
            ],
            "x was claimed at 39, but leased until 40",
        ),
        (
            [
                *put("x"),
                claim("x", 10, 40, 1),
                {"tries": "extend", "id": "x", "token": 1, "lease": 10, "at": 15},
                claim("x", 24, 50, 2),
            ],
            "x was claimed at 24, but leased until 25",
        ),
        (
            [
                *put("x"),
                claim("x", 10, 20, 1),
                {"tries": "release", "id": "x", "token": 9, "at": 15},
                claim("x", 16, 50, 2),
            ],
            "x was claimed at 16, but leased until 20",
        ),
        (
            [*put("x"), claim("x", 10, 20, 7), claim("x", 25, 30, 7)],
            "x was claimed with token 7 after 7",
        ),
        (
            [*put("x"), claim("x", 10, 20, 1), *ack("x", 11), *ack("x", 12)],
            "x was acked 2 times",
        ),
        (
            [*put("x"), claim("x", 10, 20, 1), *ack("x", 11), claim("x", 30, 40, 2)],
            "x was delivered at 30, after its ack at 11",
        ),
        (
            [*put("x"), *cancel("x", 5), claim("x", 6, 16, 1)],
            "x was delivered at 6, after its cancel at 5",
        ),
    ],
)
def test_what_breaks_a_promise_is_found(events: list[Event], problem: str) -> None:
    assert check([SOUND, events]) == [problem]


def test_what_was_tried_and_never_confirmed_may_be_either_way() -> None:
    open_ended: list[Event] = [
        {"tries": "put", "ids": ["x"], "at": 1},
        *put("y"),
        {"tries": "cancel", "id": "y", "at": 2},
        *put("z"),
        *cancel("z", 3, done=False),
        claim("z", 4, 50, 1),
        {"tries": "extend", "id": "z", "token": 1, "lease": 5, "at": 5},
        claim("z", 10, 20, 2),
    ]
    assert check([open_ended]) == []


@pytest.mark.parametrize(
    ("flow", "left", "problems"),
    [
        (Flow(put=4, acked=3, cancelled=1), 0, []),
        (
            Flow(put=3, acked=2, cancelled=1),
            0,
            ["3 were put: 4 confirmed, 4 tried", "2 were acked: 3 confirmed, 4 tried"],
        ),
        (
            Flow(put=4, acked=5, cancelled=2),
            0,
            ["5 were acked: 3 confirmed, 4 tried", "2 were cancelled: 1 confirmed, 1 tried"],
        ),
        (Flow(put=4, acked=3, cancelled=1), 2, ["2 are left after the end"]),
    ],
)
def test_counters_that_cannot_be_are_found(flow: Flow, left: int, problems: list[str]) -> None:
    assert check_counts([SOUND], Counts(Sizes(ready=left), flow)) == problems


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.tries("put", ids=["a"])
    journal.did("put", ids=["a"])
    with (tmp_path / "journal").open("a") as file:
        file.write('{"did": "pu')
    events: list[Any] = list(read(tmp_path / "journal"))
    assert [event.get("did") for event in events] == [None, "put"]
    assert events[0]["at"] > 0


class Server:
    """Answers what it gets with `got ` before it, and with `answer` to whatever asks for it."""

    def __init__(self, port: int = 0, answer: bytes = b"") -> None:
        self.requests: queue.Queue[bytes] = queue.Queue()
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(100):
                self.requests.put(data)
                connection.sendall(self._answer or b"got " + data)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def exchange(client: socket.socket, request: bytes) -> bytes:
    """Return the answer to a request; empty if the connection was closed instead."""
    with suppress(ConnectionResetError):
        client.sendall(request)
        return client.recv(100)
    return b""


@pytest.mark.parametrize(
    ("fault", "answered", "executed"),
    [("cut", b"", 0), ("reset", b"", 0), ("lose", b"", 1), ("delay", b"got ab", 1)],
)
def test_a_request_meets_the_fault_that_was_ordered(
    proxy_before: Callable[[str | int], Proxy],
    server: Server,
    fault: Fault,
    answered: bytes,
    executed: int,
) -> None:
    proxy = proxy_before(server.port)
    proxy.strike(fault)
    with connect(proxy) as client:
        assert exchange(client, b"ab") == answered
    assert proxy.struck
    assert server.requests.qsize() == executed
    with connect(proxy) as client:
        assert exchange(client, b"on") == b"got on"


def test_a_part_of_a_request_is_passed_on(
    proxy_before: Callable[[str | int], Proxy], server: Server
) -> None:
    proxy = proxy_before(server.port)
    proxy.faults = Faults(1.0, ["half"])
    with connect(proxy) as client:
        assert len(exchange(client, b"ab")) < len(b"got a")
    while not server.requests.empty():
        assert server.requests.get() == b"a"


@pytest.mark.parametrize("fault", ["hang", "hang after"])
def test_a_connection_that_hangs_stays_open_and_says_nothing(
    proxy_before: Callable[[str | int], Proxy], server: Server, fault: Fault
) -> None:
    proxy = proxy_before(server.port)
    proxy.strike(fault)
    with connect(proxy) as client, connect(proxy) as other:
        client.sendall(b"ab")
        if fault == "hang after":
            assert server.requests.get(timeout=PATIENCE) == b"ab"
        until(lambda: proxy.struck)
        assert exchange(other, b"on") == b"got on"
        assert server.requests.get(timeout=PATIENCE) == b"on"
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)


def test_what_comes_byte_by_byte_is_complete(
    proxy_before: Callable[[str | int], Proxy], server: Server
) -> None:
    proxy = proxy_before(server.port)
    proxy.faults = Faults(1.0, ["crumbs"])
    with connect(proxy) as client, client.makefile("rwb") as file:
        file.write(b"a")
        file.flush()
        assert file.read(len(b"got a")) == b"got a"
    assert proxy.faults.counts == {"crumbs": 2}


def test_faults_strike_their_share_and_all_kinds_of_them() -> None:
    faults = Faults(0.25, seed=1)
    drawn = [faults.draw() for _ in range(4_000)]
    assert set(drawn) == {None, *get_args(Fault)}
    assert 800 < sum(faults.counts.values()) < 1_200


def test_servers_that_name_each_other_name_the_proxies() -> None:
    first, second = sorted((free_port(), free_port()))
    answer = b"*2\r\n:%d\r\n$5\r\n%d\r\n-MOVED 1 127.0.0.1:%d\r\n$6\r\n%d0\r\n"
    servers = [Server(first, answer % (first, second, second, first)), Server(second)]
    proxies = before_all([first, second])
    one, other = proxies[first], proxies[second]
    try:
        with connect(one) as client:
            assert exchange(client, b"?") == answer % (one.port, other.port, other.port, first)
    finally:
        for proxy in proxies.values():
            proxy.close()
        for server in servers:
            server.close()
