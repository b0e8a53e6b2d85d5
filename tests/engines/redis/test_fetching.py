"""Records of a claim of many are fetched behind its script: what may happen in between."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis as client_library

from bide.engines.port import PartlyDone
from bide.engines.redis import RedisEngine
from bide.engines.redis.verbs import Call
from bide.model.commands import Ack, Cancel, Claim, Command, Put
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Item
from tests.engines.redis.claims import LEASE, MANY, NOW, claim, of, put, settle, sound
from tests.engines.redis.conftest import Open
from tests.engines.redis.proxy import Proxy


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    proxy = Proxy(urlsplit(url).path)
    yield proxy
    proxy.close()


def between(engine: RedisEngine, happens: Callable[[], object]) -> None:
    """Have something happen between a claim's script and the fetching of the records, once."""
    send, waiting = engine._sender.send, [happens]

    def send_later(calls: Sequence[Call], *rest: Any) -> list[Any]:
        if calls[0].script == "records" and waiting:
            waiting.pop()()
        return send(calls, *rest)

    engine._sender.send = send_later  # type: ignore[assignment, method-assign]


def test_who_stood_still_until_its_lease_was_over_gets_what_is_left(open_engine: Open) -> None:
    engine, other = open_engine(), open_engine()
    ids = put(engine, MANY)
    later = NOW + LEASE

    def meanwhile() -> None:
        claimed = claim(other, now=later, holder="v")
        assert all(settle(other, Ack("q", of(claimed)), later))
        new = [Item(id, b'"new"', delay=3_600_000) for id in ids]
        assert all(settle(other, Put("q", new), later))

    between(engine, meanwhile)
    assert claim(engine).messages == []
    assert sound(other, later).sizes.delayed == MANY


def test_what_one_alone_was_taken_from_is_not_handed_out(open_engine: Open) -> None:
    engine, other = open_engine(), open_engine()
    ids = put(engine, MANY)

    def meanwhile() -> None:
        assert all(settle(other, Cancel("q", [ids[0]]), NOW + LEASE))
        new = [Item(ids[0], b'"new"', delay=3_600_000)]
        assert all(settle(other, Put("q", new), NOW + LEASE))

    between(engine, meanwhile)
    claimed = claim(engine)
    assert [m.id for m in claimed.messages] == ids[1:]
    assert all(settle(engine, Ack("q", of(claimed))))
    assert sound(engine).sizes.total == 1


def test_a_store_that_is_wiped_within_a_claim(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, MANY)
    between(engine, server.flushdb)
    assert claim(engine).messages == []


@pytest.mark.parametrize("count", [MANY, 2 * MANY])
def test_a_server_that_is_lost_within_a_claim(
    open_engine: Open, url: str, proxy: Proxy, count: int
) -> None:
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?reconnect=300ms")
    put(engine, MANY)
    between(engine, proxy.close)
    with pytest.raises(OutcomeUnknown, match="were leased, and come again when the lease lapses"):
        claim(engine, count)


def test_what_came_before_a_server_was_lost_is_handed_out(
    open_engine: Open, url: str, proxy: Proxy
) -> None:
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?reconnect=300ms")
    ids = put(engine, 1200)
    between(engine, lambda: between(engine, proxy.close))
    assert [m.id for m in claim(engine, 1200).messages] == ids[:500]


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("cut", [1, 100, 400, 900, 1600, 2500, 5000])
def test_a_connection_that_is_cut_within_a_claim_costs_nothing(
    open_engine: Open, url: str, proxy: Proxy, way: str, cut: int
) -> None:
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}")
    ids = put(engine, MANY)
    setattr(proxy, f"cut_{way}", cut)
    claimed = claim(engine)
    assert [(m.id, m.body) for m in claimed.messages] == [(id, id) for id in ids]
    assert all(settle(engine, Ack("q", of(claimed))))
    assert sound(engine).sizes.total == 0
    assert proxy.connections == 2


def test_of_shards_it_is_unknown_as_well(open_engine: Open, url: str, proxy: Proxy) -> None:
    far = f"{proxy.url}/{url.rpartition('=')[2]}?reconnect=300ms&shards=3"
    engine = open_engine(far)
    put(engine, 1500)
    between(engine, proxy.close)
    with pytest.raises(OutcomeUnknown, match="were leased"):
        claim(engine, 1500)


def test_of_shards_what_came_before_is_handed_out_as_well(
    open_engine: Open, url: str, proxy: Proxy
) -> None:
    far = f"{proxy.url}/{url.rpartition('=')[2]}?reconnect=300ms&shards=2"
    engine = open_engine(far)
    put(engine, 3000)
    send, fetched = engine._sender.send, list[Call]()

    def send_later(calls: Sequence[Call], *rest: Any) -> list[Any]:
        if calls[0].script == "survey" and fetched:
            proxy.close()
        fetched.extend(call for call in calls if call.script == "records")
        return send(calls, *rest)

    engine._sender.send = send_later  # type: ignore[assignment, method-assign]
    assert len(claim(engine, 3000).messages) == 1000


def test_each_of_a_batch_hears_its_own_error(
    open_engine: Open, url: str, proxy: Proxy, server: "client_library.Redis"
) -> None:
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?reconnect=300ms")
    put(engine, MANY)
    server.set("bide:{p#0}:delayed", "somebody's own")
    between(engine, proxy.close)
    batch: list[Command] = [
        Put("p", [Item("x", b"1"), Item("y", b"1")]),
        Claim("q", MANY, LEASE, "w"),
    ]
    with pytest.raises(PartlyDone) as raised:
        engine.execute(batch, NOW)
    refused, unknown = raised.value.outcomes
    assert isinstance(refused, StoreError)
    assert not isinstance(refused, OutcomeUnknown)
    assert isinstance(unknown, OutcomeUnknown)
