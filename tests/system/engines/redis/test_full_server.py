"""A server at its maxmemory: what it refuses, and that all else goes on, so that it drains."""

from collections.abc import Callable
from typing import Any

import pytest

from bide.engines.port import PartlyDone
from bide.engines.redis import RedisEngine
from bide.model.commands import Ack, Cancel, Claim, Configure, Count, Lease, Put, Queues
from bide.model.errors import StoreFull
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Names, Outcomes
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

Start = Callable[..., RedisServer]
HOUR = 3_600_000


def put(*ids: str, size: int = 1) -> Put:
    return Put("q", [Item(id, b"x" * size, json=False) for id in ids])


def ask(engine: RedisEngine, *commands: Any) -> Any:
    return engine.execute(commands)[0]


def test_a_full_server_refuses_puts_and_lets_the_queues_drain(
    open_engine: Open, start: Start
) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("a", "b", size=100))
    server.client().config_set("maxmemory", "1mb")
    with pytest.raises(StoreFull, match=r"at its maxmemory.*workers drain"):
        ask(engine, put("c"))
    claimed = ask(engine, Claim("q", 1, HOUR, "w"))
    assert ask(engine, Ack("q", [Lease("a", claimed.token)])).outcomes[0]
    assert ask(engine, Cancel("q", ["b"])).outcomes[0]
    counts = ask(engine, Count("q", recount=True))
    assert (counts.sizes.total, counts.strays) == (0, 0)


def test_a_queue_that_cannot_be_made_fails_no_other_command_of_its_batch(
    open_engine: Open, start: Start
) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("a"))
    claimed = ask(engine, Claim("q", 1, HOUR, "w"))
    server.client().config_set("maxmemory", "1mb")
    new = Put("new", [Item("b", b"1")])
    with pytest.raises(PartlyDone) as raised:
        engine.execute([new, new, Ack("q", [Lease("a", claimed.token)])])
    *refused, acked = raised.value.outcomes
    assert [type(error) for error in refused] == [StoreFull, StoreFull]
    assert isinstance(acked, Outcomes)
    assert acked.outcomes[0].done


def test_a_worker_that_starts_when_the_server_is_full_drains_it(
    open_engine: Open, start: Start
) -> None:
    server = start()
    ask(open_engine(server.url), put("a", size=100))
    server.client().config_set("maxmemory", "1mb")
    worker = open_engine(server.url)  # the library is there, though the server takes none now
    claimed = ask(worker, Claim("q", 1, HOUR, "w"))
    assert ask(worker, Ack("q", [Lease("a", claimed.token)])).outcomes[0]
    server.client().function_flush()
    with pytest.raises(StoreFull, match="at its maxmemory"):
        ask(worker, Claim("q", 1, HOUR, "w"))
    server.client().config_set("maxmemory", "0")
    assert not ask(worker, Claim("q", 1, HOUR, "w")).messages


def test_a_full_server_is_drained_by_a_url_that_names_another_number_of_shards(
    open_engine: Open, start: Start
) -> None:
    server = start()
    ask(open_engine(server.url), put(*"abcdef"))
    server.client().config_set("maxmemory", "1mb")
    other = open_engine(f"{server.url}?shards=8")
    assert all(ask(other, Cancel("q", [*"abcde"])).outcomes)
    assert [m.id for m in ask(other, Claim("q", 6, HOUR, "w")).messages] == ["f"]


def test_of_a_batch_only_the_guilty_hears_of_it(open_engine: Open, start: Start) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("a"))
    server.client().config_set("maxmemory", "1mb")
    with pytest.raises(PartlyDone) as raised:
        engine.execute([Claim("q", 1, HOUR, "w"), put("b"), Count("q")])
    claimed, error, counts = raised.value.outcomes
    assert isinstance(claimed, Claimed)
    assert claimed.messages
    assert isinstance(error, StoreFull)
    assert isinstance(counts, Counts)
    assert counts.sizes.leased == 1


def test_a_paused_queue_goes_on_though_the_server_is_full(open_engine: Open, start: Start) -> None:
    server = start()
    ask(open_engine(server.url), put("a"), Configure("q", paused=True))
    server.client().config_set("maxmemory", "1mb")
    engine = open_engine(server.url)
    assert not ask(engine, Configure("q", paused=False)).paused
    assert ask(engine, Configure("q", limit=5)).limit == 5
    assert [m.id for m in ask(engine, Claim("q", 1, HOUR, "w")).messages] == ["a"]


def test_a_full_server_makes_no_queue(open_engine: Open, start: Start) -> None:
    server = start()
    engine = open_engine(server.url)
    server.client().config_set("maxmemory", "1mb")
    for command in (Configure("q", keep=5), put("a")):
        with pytest.raises(StoreFull):
            ask(engine, command)
    assert ask(engine, Queues("")) == Names([])
    server.client().config_set("maxmemory", "0")
    ask(engine, put("a"))
    assert ask(engine, Queues("")) == Names(["q"])


def test_a_large_put_says_that_some_of_it_is_stored(open_engine: Open, start: Start) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("a"))
    used = server.client().info("memory")["used_memory"]
    server.client().config_set("maxmemory", used + 4_000_000)
    with pytest.raises(StoreFull, match="the command was carried out for its other messages"):
        ask(engine, put(*(f"m{number}" for number in range(100)), size=100_000))
    counts = ask(engine, Count("q", recount=True))
    assert 1 < counts.sizes.total < 100
    assert counts.strays == 0


def test_a_loss_that_is_found_on_a_full_server_fails_no_claim(
    open_engine: Open, start: Start
) -> None:
    server = start()
    engine, other = open_engine(server.url), open_engine(server.url)
    for id in "abc":
        ask(engine, put(id))
    server.client().flushall()
    ask(other, put("d"))
    server.client().delete("bide:queues", "bide:queues:shards")
    server.client().config_set("maxmemory", "1mb")
    assert [m.id for m in ask(engine, Claim("q", 1, HOUR, "w")).messages] == ["d"]
    server.client().config_set("maxmemory", "0")
    ask(engine, put("e"))
    assert ask(engine, Queues("")) == Names(["q"])
