"""Troubles that pass: what the server refuses for a while is tried again, and done once."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from bide.engines.port import PartlyDone
from bide.engines.redis import RedisEngine, sender
from bide.model.commands import Cancel, Count, Put
from bide.model.errors import (
    OutcomeUnknown,
    SchemaTooNew,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
)
from bide.model.message import Item
from bide.model.replies import Counts, Outcomes
from bide.testing.engine_hooks import redis_sender
from tests.proxy import Proxy
from tests.servers import PATIENCE, RedisServer
from tests.system.engines.redis.conftest import Open

Start = Callable[..., RedisServer]
Later = Callable[[Callable[[], object]], None]

pytestmark = pytest.mark.process


@pytest.fixture
def later() -> Iterator[Later]:
    """Do something in a moment, while the test waits for what it does itself."""
    timers: list[threading.Timer] = []

    def later(act: Callable[[], object]) -> None:
        timers.append(threading.Timer(0.2, act))
        timers[-1].start()

    yield later
    for timer in timers:
        timer.join()


def put(engine: RedisEngine, id: str) -> bool:
    (reply,) = engine.execute([Put("q", [Item(id, b"1")])])
    assert isinstance(reply, Outcomes)
    return reply.outcomes[0].done


def sound(engine: RedisEngine, total: int) -> bool:
    (counts,) = engine.execute([Count("q", recount=True)])
    assert isinstance(counts, Counts)
    return (counts.sizes.total, counts.flow.put, counts.strays) == (total, total, 0)


def test_a_server_that_was_a_replica_for_a_while(
    open_engine: Open, start: Start, later: Later
) -> None:
    """As behind a name or a proxy that leads to the new master in the end."""
    server = start()
    engine = open_engine(f"{server.url}?reconnect={PATIENCE}")
    assert put(engine, "a")
    server.client().replicaof("127.0.0.1", "1")
    later(lambda: server.client().replicaof("NO", "ONE"))
    assert put(engine, "b")
    assert sound(engine, 2)


def test_a_server_that_lacks_replicas_for_a_while(
    open_engine: Open, start: Start, later: Later
) -> None:
    server = start()
    engine = open_engine(f"{server.url}?reconnect=100ms")
    assert put(engine, "a")
    server.client().config_set("min-replicas-to-write", 1)
    with pytest.raises(StoreReadOnly, match="fewer replicas than its min-replicas-to-write"):
        put(engine, "b")
    patient = open_engine(f"{server.url}?reconnect={PATIENCE}")
    later(lambda: server.client().config_set("min-replicas-to-write", 0))
    assert put(patient, "b")
    assert sound(engine, 2)


def hold(server: RedisServer) -> None:
    """Run a script that does not end, until somebody kills it."""

    def run() -> None:
        try:
            server.client().eval("while true do end", 0)
        except redis.RedisError:  # it was killed
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    probe = server.client()
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            probe.ping()
        except redis.ResponseError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_is_busy_with_somebody_elses_script(
    open_engine: Open, start: Start, later: Later
) -> None:
    server = start(**{"busy-reply-threshold": "20"})
    engine = open_engine(f"{server.url}?reconnect=100ms")
    patient = open_engine(f"{server.url}?reconnect={PATIENCE}")
    assert put(engine, "a")
    hold(server)
    with pytest.raises(StoreBusy, match=r"a script of another program.*SCRIPT KILL"):
        put(engine, "b")
    later(lambda: server.client().script_kill())
    assert put(patient, "b")
    assert sound(engine, 2)


@pytest.mark.parametrize("pause", [200, 1500])
def test_a_server_that_is_slow(open_engine: Open, start: Start, pause: int) -> None:
    """Slower than the time-out even: it is asked again, and has done it once."""
    server = start()
    engine = open_engine(f"{server.url}?timeout=500ms&reconnect={PATIENCE}")
    assert put(engine, "a")
    admin: Any = server.client()
    admin.execute_command("CLIENT", "PAUSE", pause, "ALL")
    assert put(engine, "b")
    assert sound(engine, 2)


def test_a_server_with_as_many_clients_as_it_may_have(open_engine: Open, start: Start) -> None:
    server = start()
    admin = server.client()
    admin.config_set("maxclients", 1)
    with pytest.raises(StoreUnavailable, match="reached its maxclients"):
        open_engine(f"{server.url}?reconnect=50ms")
    admin.config_set("maxclients", 100)
    assert put(open_engine(server.url), "a")


def test_a_store_that_a_newer_bide_has_taken_meanwhile(open_engine: Open, start: Start) -> None:
    server = start()
    proxy = Proxy(server.path)
    engine = open_engine(proxy.url)
    assert put(engine, "a")
    server.client().set("bide:version", 1000)
    proxy.cut_all()
    with pytest.raises(OutcomeUnknown, match=r"may have been carried out or not.*upgrade bide"):
        put(engine, "b")
    with pytest.raises(SchemaTooNew, match="upgrade bide"):
        put(engine, "b")
    assert server.client().hlen("bide:{q#0}:records") == 1
    proxy.close()


def test_a_server_that_loads_its_data_is_waited_for_by_who_opens_a_store(
    open_engine: Open, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "FIRST_WAIT", 0.0)  # who does not answer is given up at once
    proxy = Proxy(start().path)
    loading = [b"-LOADING Redis is loading the dataset in memory\r\n"] * 5
    proxy.rewrite = lambda data: loading.pop() if loading else data
    assert put(open_engine(f"{proxy.url}?reconnect={PATIENCE}"), "a")
    assert not loading
    proxy.close()
    with pytest.raises(StoreUnavailable, match="is the server running"):
        open_engine(f"{proxy.url}?reconnect={PATIENCE}")


def test_a_server_that_starts_and_then_loads_its_data_is_waited_for(
    open_engine: Open, start: Start, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "FIRST_WAIT", 0.4)
    path, begin = start().path, time.monotonic()
    first = Proxy(path)
    first.close()  # nobody listens on its port

    def loads(data: bytes) -> bytes:
        over = time.monotonic() > begin + 0.8
        return data if over else b"-LOADING Redis is loading the dataset in memory\r\n"

    def begins() -> None:
        proxies.append(Proxy(path, first.port))
        proxies[0].rewrite = loads

    proxies: list[Proxy] = []
    later(begins)  # the attempts before it find nobody
    assert put(open_engine(f"{first.url}?reconnect={PATIENCE}"), "a")
    proxies[0].close()


def test_after_a_long_absence_the_next_short_one_is_waited_for_by_all_queues(
    open_engine: Open, start: Start, later: Later
) -> None:
    path = start().path
    proxies = [Proxy(path)]
    engine = open_engine(f"{proxies[0].url}?reconnect=400ms")

    def comes_back() -> None:
        proxies.append(Proxy(path, proxies[0].port))

    proxies[-1].close()
    with pytest.raises(StoreUnavailable):
        engine.execute([Count("other")])
    comes_back()
    assert put(engine, "a")
    proxies[-1].close()
    later(comes_back)
    engine.execute([Count("other")])
    proxies[-1].close()


def test_a_server_too_busy_to_count_its_replicas_confirms_nothing(
    open_engine: Open, start: Start
) -> None:
    proxy = Proxy(start().path)
    engine = open_engine(f"{proxy.url}?wait_replicas=1&timeout=1s&reconnect=100ms")
    proxy.rewrite = lambda data: re.sub(rb":0\r\n$", b"-BUSY Redis is busy\r\n", data)
    with pytest.raises(OutcomeUnknown, match=r"only 0 \(BUSY Redis is busy\) of the 1 replicas"):
        put(engine, "a")
    proxy.close()


def test_what_was_refused_is_not_done_after_what_follows_it(
    open_engine: Open, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a large batch arrives in parts, and replicas are back before the last one."""
    server = start()
    engine = open_engine(f"{server.url}?reconnect={PATIENCE}")
    assert put(engine, "a")
    admin, nodes = server.client(), redis_sender(engine).nodes
    connection = nodes.connection(nodes.owner(0) or ("", 0))
    send = connection.begin

    def begin(packed: bytes, labels: Sequence[bytes]) -> Any:
        second = packed.rindex(b"*", 0, packed.rindex(b"FCALL"))
        admin.config_set("min-replicas-to-write", 1)
        first = send(packed[:second], labels[:1]).answers()
        admin.config_set("min-replicas-to-write", 0)
        rest = send(packed[second:], labels[1:]).answers()
        return SimpleNamespace(answers=lambda: first + rest)

    monkeypatch.setattr(connection, "begin", begin)
    with pytest.raises(PartlyDone) as raised:
        engine.execute([Put("q", [Item("b", b"1")]), Cancel("q", ["b"])])
    monkeypatch.undo()
    assert [type(outcome) for outcome in raised.value.outcomes] == [StoreReadOnly, Outcomes]
    assert sound(engine, 1)
