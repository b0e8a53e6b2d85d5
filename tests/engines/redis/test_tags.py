"""Many messages that are put together: their records come whole, and a tag says what they mean."""

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.engines.redis.verbs import put as verb
from bide.model.commands import (
    Ack,
    Cancel,
    Claim,
    Command,
    Count,
    Find,
    Lease,
    Purge,
    Put,
    Reschedule,
    Retry,
    Scan,
)
from bide.model.message import Alike, Fresh, Item, Message
from bide.model.replies import Claimed, Counts, Found, Outcomes, Page
from tests.engines.redis.conftest import Open
from tests.engines.redis.proxy import Proxy

NOW = 1_700_000_000_000
MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    proxy = Proxy(urlsplit(url).path)
    yield proxy
    proxy.close()


def key(part: str) -> str:
    return f"bide:{{q#0}}:{part}"


def many(total: int = 100, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(total)]


def put(ids: Sequence[str], *, delay: int = HOUR, at: int | None = None, priority: int = 0) -> Put:
    body = b'"' + b"x" * 100 + b'"'
    return Put("q", Alike(Item(id, body, at=at, delay=delay, priority=priority) for id in ids))


def do(engine: RedisEngine, command: Command, now: int = NOW) -> Outcomes:
    (reply,) = engine.execute([command], now)
    assert isinstance(reply, Outcomes)
    return reply


def claim(engine: RedisEngine, count: int, now: int) -> Claimed:
    (reply,) = engine.execute([Claim("q", count, MINUTE, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def leases(claimed: Claimed) -> list[Lease]:
    return [Lease(message.id, claimed.token) for message in claimed.messages]


def sound(engine: RedisEngine, now: int = NOW) -> Counts:
    (counts,) = engine.execute([Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert counts.strays == 0
    assert counts.flow.put == counts.flow.gone + counts.sizes.total
    return counts


def tagged(server: "client_library.Redis") -> int:
    """How many records have a tag."""
    records: list[bytes] = server.hvals(key("records"))  # type: ignore[assignment]
    return sum(record.startswith(b"~") for record in records)


def tags(server: "client_library.Redis") -> int:
    """How many tags the server knows."""
    names: list[bytes] = server.hkeys(key("alive"))  # type: ignore[assignment]
    return sum(name.startswith(b"~") for name in names)


@pytest.mark.parametrize("total", [64, 500, 501, 4097])
def test_what_is_found_is_what_was_put(
    engine: RedisEngine, server: "client_library.Redis", total: int
) -> None:
    ids = many(total)
    outcomes = do(engine, put(ids)).outcomes
    assert {(o.done, o.state, o.due) for o in outcomes} == {(True, "delayed", NOW + HOUR)}
    assert tagged(server) >= total - 500
    (found,) = engine.execute([Find("q", ids[:70])], NOW)
    assert isinstance(found, Found)
    assert all(isinstance(m, Message) and m.due == NOW + HOUR for m in found.messages)
    (page,) = engine.execute([Scan("q", limit=total)], NOW)
    assert isinstance(page, Page)
    assert [(m.id, m.due) for m in page.messages] == [(id, NOW + HOUR) for id in ids]
    claimed = claim(engine, total, NOW + HOUR)
    assert [(m.id, m.due) for m in claimed.messages] == [(id, NOW + HOUR) for id in ids]
    sound(engine, NOW + HOUR)


@pytest.mark.parametrize(
    "end",
    [
        lambda engine: [do(engine, Cancel("q", [id])) for id in many()],
        lambda engine: do(engine, Cancel("q", many())),
        lambda engine: engine.execute([Purge("q", "delayed")], NOW),
        lambda engine: do(engine, Ack("q", leases(claim(engine, 100, NOW + HOUR))), NOW + HOUR),
    ],
    ids=["cancel one by one", "cancel", "purge", "ack"],
)
def test_tags_go_with_their_chunk(
    engine: RedisEngine, server: "client_library.Redis", end: object
) -> None:
    do(engine, put(many()))
    assert tags(server) == 1
    assert callable(end)
    end(engine)
    assert server.exists(key("alive"), key("order"), key("records"), key("held")) == 0
    sound(engine)


def test_moments_and_long_delays_need_no_put_to_count_from(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    do(engine, put(many(prefix="a"), at=NOW + 5, delay=0))
    assert tagged(server) == 100
    do(engine, put(many(prefix="b"), delay=10**12))
    assert tagged(server) == 100
    do(engine, put(many(prefix="c"), delay=10**12 - 1))
    assert tagged(server) == 200
    (found,) = engine.execute([Find("q", ["a0007", "b0007", "c0007"])], NOW)
    assert isinstance(found, Found)
    dues = [message and message.due for message in found.messages]
    assert dues == [NOW + 5, NOW + 10**12, NOW + 10**12 - 1]


def test_some_that_are_there_already_are_kept(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = many()
    do(engine, put(ids[3:5], delay=MINUTE))
    outcomes = do(engine, put(ids)).outcomes
    assert [o.id for o in outcomes if not o.done] == ids[3:5]
    assert tagged(server) == 0
    (page,) = engine.execute([Scan("q", limit=100)], NOW)
    assert isinstance(page, Page)
    assert {m.due for m in page.messages if m.id not in ids[3:5]} == {NOW + HOUR}
    assert all(m.data.startswith(b'"xx') for m in page.messages)
    sound(engine)


def test_a_tag_that_is_taken_is_not_used(
    engine: RedisEngine, server: "client_library.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "token_bytes", bytes)
    do(engine, put(many(prefix="a")))
    do(engine, put(many(prefix="b"), delay=MINUTE), NOW + 7)
    assert (tagged(server), tags(server)) == (100, 1)
    (found,) = engine.execute([Find("q", ["b0007"])], NOW)
    assert isinstance(found, Found)
    assert found.messages[0] is not None
    assert found.messages[0].due == NOW + 7 + MINUTE
    do(engine, Cancel("q", many(prefix="b")))  # the chunk goes, and not what is another's
    claimed = claim(engine, 200, NOW + HOUR)
    assert [(m.id, m.due) for m in claimed.messages] == [
        (id, NOW + HOUR) for id in many(prefix="a")
    ]
    sound(engine, NOW + HOUR)


def fresh(ids: Sequence[str]) -> Put:
    return Put("q", Fresh(put(ids).items))


def test_ids_that_were_made_up_are_not_looked_for(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    engine.execute([Put("q", [Item("first", b"1")])], NOW)
    server.config_resetstat()
    assert all(do(engine, fresh(many(500))).outcomes)
    stats = server.info("commandstats")["cmdstat_hmget"]
    assert stats["calls"] == 2  # what the queue is like, and whether the tag is known
    assert sound(engine).sizes.total == 501


def test_made_up_ids_that_come_a_second_time_are_stored_once(
    engine: RedisEngine, server: "client_library.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "token_bytes", bytes)  # as of a packet that arrives once more, late
    ids = many()
    assert all(do(engine, fresh(ids)).outcomes)
    claimed = claim(engine, 40, NOW + HOUR)
    assert [o.state for o in do(engine, fresh(ids)).outcomes] == ["leased"] * 40 + ["delayed"] * 60
    assert all(do(engine, Ack("q", leases(claimed)), NOW + HOUR).outcomes)
    done = [o.done for o in do(engine, fresh(ids)).outcomes]
    assert done == [True] * 40 + [False] * 60
    assert sound(engine).sizes.total == 100


def test_made_up_ids_are_looked_for_at_the_second_try(engine: RedisEngine) -> None:
    again = fresh(many())  # as of who repeats what failed for another reason
    assert all(do(engine, again).outcomes)
    assert not any(do(engine, again).outcomes)
    assert sound(engine).sizes.total == 100


def test_made_up_ids_are_looked_for_where_a_tag_has_no_room(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = many()
    assert all(do(engine, fresh(ids)).outcomes)
    server.hset(key("alive"), "@0000000001", "~half")  # half a change, of the next
    assert not any(do(engine, fresh(ids)).outcomes)
    assert all(do(engine, fresh(many(100, "n"))).outcomes)
    assert tagged(server) == 100
    server.hdel(key("alive"), "@0000000001")
    sound(engine)


def test_one_claim_tells_of_several_tags_and_of_none(engine: RedisEngine) -> None:
    expected: dict[str, int] = {}
    for number, lot in enumerate("abcd"):
        do(engine, put(many(70, lot), delay=MINUTE), NOW + number)
        expected |= dict.fromkeys(many(70, lot), NOW + number + MINUTE)
    do(engine, Reschedule("q", many(20, "b"), NOW + MINUTE + 1))
    expected |= dict.fromkeys(many(20, "b"), NOW + MINUTE + 1)
    do(engine, put(["alone"], delay=MINUTE + 2))
    expected["alone"] = NOW + MINUTE + 2
    claimed = claim(engine, 1000, NOW + HOUR)
    assert {m.id: m.due for m in claimed.messages} == expected
    assert [m.due for m in claimed.messages] == sorted(expected.values())
    done = do(engine, Retry("q", leases(claimed)[:100], MINUTE), NOW + HOUR)
    assert all(outcome.done for outcome in done.outcomes)
    assert all(do(engine, Ack("q", leases(claimed)[100:]), NOW + HOUR).outcomes)
    sound(engine, NOW + HOUR)


def test_weights_are_weighed_over_tags(engine: RedisEngine) -> None:
    for number, lot in enumerate("abc"):
        do(engine, put(many(64, lot), delay=MINUTE, priority=number), NOW)
    claimed = claim(engine, 192, NOW + HOUR)
    assert [m.id for m in claimed.messages] == [*many(64, "c"), *many(64, "b"), *many(64, "a")]


def test_a_claim_whose_reply_was_lost_tells_the_moments(
    proxy: Proxy, url: str, open_engine: Open
) -> None:
    far = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=2s")
    do(far, put(many()))
    proxy.cut_down = 3
    claimed = claim(far, 100, NOW + HOUR)
    assert {m.due for m in claimed.messages} == {NOW + HOUR}
    assert [m.id for m in claimed.messages] == many()
    sound(far, NOW + HOUR)


@pytest.mark.parametrize("place", [1, 200, 1500, 9_000, 20_000, 30_000, 60_000])
def test_a_put_of_many_that_was_cut_is_carried_out_once(
    proxy: Proxy, url: str, open_engine: Open, place: int
) -> None:
    far = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=2s")
    proxy.cut_up = place
    outcomes = do(far, put(many(450))).outcomes
    assert all(o.done and o.due == NOW + HOUR for o in outcomes)
    assert sound(far).sizes.delayed == 450


@pytest.mark.parametrize("side", ["cut_up", "cut_down"])
@pytest.mark.parametrize("place", [0, 1, 5, 14, 90, 200, 330])
def test_a_lone_put_or_cancel_that_was_cut_is_carried_out_once(
    proxy: Proxy, url: str, open_engine: Open, side: str, place: int
) -> None:
    far = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=2s")
    do(far, put(["first"]))
    setattr(proxy, side, place)
    (outcome,) = do(far, put(["a"])).outcomes
    assert (outcome.done, outcome.state, outcome.due) == (True, "delayed", NOW + HOUR)
    setattr(proxy, side, place)
    (outcome,) = do(far, Cancel("q", ["a"])).outcomes
    assert (outcome.done, outcome.due) == (True, NOW + HOUR)
    counts = sound(far)
    assert (counts.flow.put, counts.flow.cancelled) == (2, 1)


def test_a_chunk_is_no_other_put_s_though_its_number_was_lost(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    do(engine, put(many(prefix="a")))
    server.hset(key("meta"), "seq", 0)  # as a server tells that died in the middle of a change
    do(engine, put(many(prefix="b"), delay=MINUTE), NOW + 7)
    claimed = claim(engine, 200, NOW + HOUR)
    dues = {m.id: m.due for m in claimed.messages}
    assert dues == dict.fromkeys(many(prefix="a"), NOW + HOUR) | dict.fromkeys(
        many(prefix="b"), NOW + 7 + MINUTE
    )


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_tag_that_was_lost_stops_no_claim(
    engine: RedisEngine, server: "client_library.Redis", all_of_it: bool
) -> None:
    do(engine, put(many()))
    if all_of_it:
        server.delete(key("alive"))
    else:
        names: list[bytes] = server.hkeys(key("alive"))  # type: ignore[assignment]
        server.hdel(key("alive"), *[name for name in names if name.startswith(b"~")])
    claimed = claim(engine, 100, NOW + HOUR)
    assert [m.id for m in claimed.messages] == many()
    assert all(do(engine, Ack("q", leases(claimed)), NOW + HOUR).outcomes)


@pytest.mark.parametrize("shards", [1, 2])
def test_what_is_told_again_was_not_told_before(
    proxy: Proxy, url: str, open_engine: Open, shards: int
) -> None:
    """Slices of a claim that are leased at the same moment are one lease."""
    far = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=2s&shards={shards}")
    do(far, put(many(1000)))
    before = proxy.told
    assert len(claim(far, 1000, NOW + HOUR).messages) == 1000
    total = proxy.told - before
    for share, prefix in enumerate("pqrst", 1):
        do(far, put(many(1000, prefix)))
        proxy.cut_down = total * share // 6
        found = [m.id for m in claim(far, 1000, NOW + HOUR).messages]
        assert len(set(found)) == len(found)
        assert set(found) <= set(many(1000, prefix))
        claim(far, 1000, NOW + HOUR)
