"""Records of a claim of many are fetched behind its script: what may happen in between."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.engines.redis.verbs import Call
from bide.model.commands import Ack, Put
from bide.model.errors import OutcomeUnknown
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
