"""No reply is read as that of another command, whatever happens between sending and reading."""

import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import pytest

from bide.engines.redis import RedisEngine, nodes
from bide.engines.redis.connection import RedisConnection
from bide.engines.redis.layout import meta_key, shard_of, slot_of
from bide.engines.redis.settings import read_url
from bide.engines.redis.wire import ConnectionLost, WireExchange, pack
from bide.model.commands import Cancel, Command, Find, Put
from bide.model.errors import OutcomeUnknown, StoreError, StoreReadOnly
from bide.model.message import Item
from bide.model.replies import Found, Outcomes
from bide.testing.engine_hooks import redis_sender
from tests.cluster import RedisCluster
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

PING = pack(("PING",)), [b""]


@pytest.fixture
def connection(url: str) -> Iterator[RedisConnection]:
    settings = read_url(urlsplit(url))
    connection = RedisConnection(settings, settings.address)
    yield connection
    connection.close()


def put(engine: RedisEngine, *ids: str) -> list[bool]:
    return done(engine, Put("q", [Item(id, b"1") for id in ids]))


def cancel(engine: RedisEngine, *ids: str) -> list[bool]:
    return done(engine, Cancel("q", list(ids)))


def done(engine: RedisEngine, command: Command) -> list[bool]:
    (reply,) = engine.execute([command])
    assert isinstance(reply, Outcomes)
    return [outcome.done for outcome in reply.outcomes]


def present(engine: RedisEngine, *ids: str) -> list[bool]:
    (reply,) = engine.execute([Find("q", list(ids))])
    assert isinstance(reply, Found)
    return [message is not None for message in reply.messages]


# A connection.


def test_nothing_is_sent_while_answers_are_due(connection: RedisConnection) -> None:
    first = connection.begin(*PING)
    with pytest.raises(ConnectionLost, match="an earlier command was interrupted"):
        connection.begin(*PING)
    with pytest.raises(ConnectionLost, match="was closed"):
        first.answers()


def test_a_connection_serves_again_when_all_is_answered(connection: RedisConnection) -> None:
    assert connection.begin(*PING).answers() == [b"PONG"]
    assert connection.usable
    assert connection.exchange(*PING) == [b"PONG"]


def test_answers_are_read_once(connection: RedisConnection) -> None:
    exchange = connection.begin(*PING)
    exchange.answers()
    with pytest.raises(ConnectionLost):
        exchange.answers()


@pytest.mark.parametrize(
    "answer", [b"$4\r\n12 \x01\r\n", b"*1\r\n:1\r\n", b":3\r\n", b"$-1\r\n", b"$4\r\n11 \xc1\r\n"]
)
def test_an_answer_that_names_another_command_closes_the_connection(
    proxy_before: Callable[[str | int], Proxy], redis_server: RedisServer, answer: bytes
) -> None:
    proxy = proxy_before(redis_server.path)
    settings = read_url(urlsplit(proxy.url))
    connection = RedisConnection(settings, settings.address)
    proxy.rewrite = lambda data: answer
    with pytest.raises(ConnectionLost):
        connection.exchange(PING[0], [b"11 "])
    assert not connection.usable


# An engine.


class _Unusual(Exception):
    """As anything may raise that is not of bide: a soft time limit, a MemoryError."""


@pytest.mark.parametrize("error", [_Unusual, TimeoutError, ConnectionError, KeyboardInterrupt])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_exception_of_a_signal_handler_leaves_no_answer_to_the_next_command(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], moment: str
) -> None:
    put(engine, "there")
    real = WireExchange.answers

    def struck(exchange: WireExchange) -> list[Any]:
        monkeypatch.undo()
        answers = real(exchange) if moment == "after" else []
        signal.raise_signal(signal.SIGALRM)
        return answers

    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handle)
    try:
        monkeypatch.setattr(WireExchange, "answers", struck)
        with pytest.raises(error):
            put(engine, "struck")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert cancel(engine, "never put") == [False]
    assert present(engine, "there", "struck", "never put") == [True, True, False]
    assert cancel(engine, "there", "struck") == [True, True]


class _Interrupted:
    """A socket that a signal handler interrupts once, after it has received something."""

    def __init__(self, socket: Any, error: BaseException) -> None:
        self._socket = socket
        self._error: BaseException | None = error

    def recv(self, size: int) -> bytes:
        data: bytes = self._socket.recv(size)
        if (error := self._error) is not None:
            self._error = None
            raise error
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


@pytest.mark.parametrize("error", [_Unusual(), TimeoutError(), ConnectionError(), MemoryError()])
def test_an_exception_inside_an_exchange_is_not_taken_for_one_of_the_network(
    engine: RedisEngine, error: Exception
) -> None:
    put(engine, "there")
    nodes = redis_sender(engine).nodes
    connection = nodes.connection(nodes.owner(0) or ("", 0))
    connection.socket = _Interrupted(connection.socket, error)
    with pytest.raises(type(error)):
        put(engine, "struck")
    assert not connection.open
    assert cancel(engine, "never put", "there", "struck") == [False, True, True]


def test_an_answer_that_nobody_asked_for_answers_nothing(
    proxy_before: Callable[[str | int], Proxy],
    url: str,
    redis_server: RedisServer,
    open_engine: Open,
) -> None:
    proxy = proxy_before(redis_server.path)
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}")
    put(engine, "there")

    def rewrite(data: bytes) -> bytes:  # the last answer comes twice
        proxy.rewrite = lambda data: data
        return data + data

    for _ in range(3):
        proxy.rewrite = rewrite
        assert present(engine, "there") == [True]
        assert cancel(engine, "never put") == [False]
        assert present(engine, "there", "never put") == [True, False]


def test_a_lost_answer_within_a_connection_makes_no_other_one_false(
    proxy_before: Callable[[str | int], Proxy],
    url: str,
    redis_server: RedisServer,
    open_engine: Open,
) -> None:
    """As of a middlebox that loses what is on its way, and keeps the connection."""
    proxy = proxy_before(redis_server.path)
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=300ms")
    put(engine, "there")
    held: list[bytes] = []

    def rewrite(data: bytes) -> bytes:  # from now on each answer comes one command too late
        held.append(data)
        return held[-2] if len(held) > 1 else b""

    proxy.rewrite = rewrite
    with pytest.raises(OutcomeUnknown):
        cancel(engine, "there")
    proxy.rewrite = lambda data: data
    assert cancel(engine, "never put") == [False]
    assert present(engine, "there") == [False]


# A cluster.

IDS = [f"m{number}" for number in range(60)]


def test_servers_are_not_asked_for_slots_while_their_answers_are_due(
    redis_cluster: RedisCluster, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One master has its replicas and another one lacks them, which shows in the middle."""
    monkeypatch.setattr(nodes, "PAUSE", 0.0)
    redis_cluster.wipe()
    url = f"{redis_cluster.url}?shards=8"
    near, engine = open_engine(url), open_engine(f"{url}&wait_replicas=1&timeout=400ms")
    put(near, "there")
    present(engine, *IDS)  # it has connections to all masters, and asks the first one for slots
    (_, asked), *_ = redis_sender(engine).nodes.connections
    ports = {id: redis_cluster.owner(slot_of(meta_key("q", shard_of(id, 8)))).port for id in IDS}
    ids = sorted(IDS, key=lambda id: ports[id] != asked)  # what goes to that one is sent first
    short = ids[-1]
    with pytest.raises(OutcomeUnknown, match="only 0 of the 1 replicas"):
        put(engine, short)
    for _ in range(3):
        with pytest.raises(StoreError) as raised:
            put(engine, *ids)
        assert type(raised.value) in (OutcomeUnknown, StoreReadOnly)
        for id in ids:
            assert present(engine, f"never {id}", "there", id) == [False, True, id in stored(near)]


def stored(engine: RedisEngine) -> set[str]:
    return {id for id, there in zip(IDS, present(engine, *IDS), strict=True) if there}
