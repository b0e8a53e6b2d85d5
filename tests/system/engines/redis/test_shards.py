"""Queues of several shards: how many there are, whoever asks, and what they share."""

import threading
from contextlib import suppress
from typing import Any

import pytest

from bide.engines.redis import RedisEngine
from bide.engines.redis.claim import _Claiming
from bide.engines.redis.layout import shard_of
from bide.model.commands import (
    Ack,
    Cancel,
    Claim,
    ClosedGroups,
    CloseGroup,
    Command,
    Configure,
    Count,
    Delete,
    Find,
    Lease,
    Put,
    Queues,
    ReopenGroup,
    Scan,
)
from bide.model.errors import InvalidArgument, StoreError, StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Deleted, GroupsClosed, Names, Outcomes, Sizes
from bide.testing.engine_hooks import redis_sender
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

HOUR = 3_600_000
NOW = 1_700_000_000_000


def put(*ids: str, **fields: Any) -> Put:
    return Put("q", [Item(id, b"1", **fields) for id in ids])


def ask(engine: RedisEngine, command: Command, now: int | None = None) -> Any:
    (reply,) = engine.execute([command], now)
    return reply


def many(count: int) -> list[str]:
    return [f"m{number:04}" for number in range(count)]


@pytest.fixture
def client(redis_server: RedisServer, url: str) -> Any:
    client = redis_server.client(db=int(url.rpartition("=")[2]))
    yield client
    client.close()


def test_messages_are_spread_by_their_ids(open_engine: Open, url: str, client: Any) -> None:
    ask(open_engine(f"{url}&shards=4"), put(*many(400)))
    for shard in range(4):
        there = {id.decode() for id in client.hkeys(f"bide:{{q#{shard}}}:records")}
        assert there == {id for id in many(400) if shard_of(id, 4) == shard}
        assert 60 < len(there) < 140


@pytest.mark.parametrize(("made", "said"), [(4, 1), (1, 4), (4, 2), (2, 4)])
def test_a_queue_stays_as_it_was_made_whatever_a_url_says(
    open_engine: Open, url: str, made: int, said: int
) -> None:
    ask(open_engine(f"{url}&shards={made}"), put(*many(20), delay=HOUR))
    other = open_engine(f"{url}&shards={said}")
    replies = other.execute(
        [Find("q", many(20)), put("m0001", "new", delay=HOUR), Count("q", recount=True), Scan("q")]
    )
    found, stored, counts, page = replies
    assert all(found.messages)  # type: ignore[union-attr]
    assert [o.done for o in stored.outcomes] == [False, True]  # type: ignore[union-attr]
    assert isinstance(counts, Counts)
    assert (counts.sizes.delayed, counts.strays) == (21, 0)
    assert len(page.messages) == 21  # type: ignore[union-attr]


@pytest.mark.parametrize("said", [1, 8])
def test_one_who_has_looked_before_it_was_made_finds_out(
    open_engine: Open, url: str, said: int
) -> None:
    early = open_engine(f"{url}&shards={said}")
    assert ask(early, Count("q")) == ask(early, Count("nobody"))
    assert ask(early, Queues("")) == Names([])
    ask(open_engine(f"{url}&shards=4"), put(*many(20)))
    assert ask(early, Count("q")).sizes.ready == 20
    claimed = ask(early, Claim("q", 20, HOUR, "w"))
    assert sorted(message.id for message in claimed.messages) == many(20)


def test_two_who_make_it_at_once_agree(open_engine: Open, url: str, client: Any) -> None:
    engines = [open_engine(f"{url}&shards={shards}") for shards in (2, 3, 4, 5)]
    start = threading.Barrier(len(engines))

    def work(engine: RedisEngine, name: str) -> None:
        start.wait()
        for number in range(10):
            ask(engine, put(f"{name}{number}"))

    threads = [
        threading.Thread(target=work, args=(engine, f"w{index}-"))
        for index, engine in enumerate(engines)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = ask(open_engine(), Count("q", recount=True))
    assert (counts.sizes.ready, counts.strays) == (40, 0)
    shards = int(client.hget("bide:{q#0}:meta", "shards"))
    there = [client.hlen(f"bide:{{q#{shard}}}:records") for shard in range(5)]
    assert sum(there) == 40
    assert not any(there[shards:])


def test_a_store_that_was_wiped_is_used_again(open_engine: Open, url: str, client: Any) -> None:
    engine = open_engine(f"{url}&shards=4")
    ask(engine, put(*many(9)))
    client.flushall()
    assert all(ask(engine, put("m0001")).outcomes)
    assert ask(engine, Queues("")) == Names(["q"])
    assert ask(open_engine(), Count("q")).sizes.ready == 1


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (8, 1), (1, 8)])
def test_a_queue_that_was_deleted_is_made_again_as_it_was(
    open_engine: Open, url: str, client: Any, before: int, after: int
) -> None:
    early = [open_engine(f"{url}&shards={before}") for _ in range(3)]
    for engine in early:
        ask(engine, put("m"))
        ask(engine, Cancel("q", ["m"]))
    assert ask(early[0], Delete("q")).done
    late = open_engine(f"{url}&shards={after}")
    ask(late, put(*many(20)))
    assert client.hget("bide:{q#0}:meta", "shards") == b"%d" % before
    for id in many(20):
        assert ask(early[0], Find("q", [id])).messages[0] is not None
        assert ask(early[1], Cancel("q", [id])).outcomes[0].done
        assert ask(early[2], put(f"new-{id}")).outcomes[0].done
    claimed = ask(late, Claim("q", 50, HOUR, "w"))
    assert sorted(message.id for message in claimed.messages) == [f"new-{id}" for id in many(20)]
    leases = [Lease(message.id, claimed.token) for message in claimed.messages]
    assert all(ask(early[0], Ack("q", leases)).outcomes)
    counts = ask(early[1], Count("q", recount=True))
    assert (counts.sizes.total, counts.flow.acked, counts.strays) == (0, 20, 0)


def test_a_batch_is_executed_in_its_order_though_its_queue_was_deleted(
    open_engine: Open, url: str
) -> None:
    first, second = (open_engine(f"{url}&shards=4") for _ in range(2))
    for engine in (first, second):
        ask(engine, put("a"))
        ask(engine, Cancel("q", ["a"]))
    assert ask(first, Delete("q")).done
    replies: list[Any] = second.execute([put("a"), Find("q", ["a"]), put("a"), Count("q")])
    stored, found, again, counts = replies
    assert stored.outcomes[0].done
    assert found.messages[0] is not None
    assert not again.outcomes[0].done
    assert counts.sizes.ready == 1


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (8, 1), (1, 8)])
def test_what_is_put_after_the_store_was_wiped_is_there_for_all(
    open_engine: Open, url: str, client: Any, before: int, after: int
) -> None:
    early = [open_engine(f"{url}&shards={before}") for _ in range(2)]
    for engine in early:
        ask(engine, put("m"))
    client.flushall()
    late = open_engine(f"{url}&shards={after}")
    ask(late, put(*many(20)))
    for number, engine in enumerate(early):
        with suppress(StoreUnavailable):  # what it knew is wrong
            ask(engine, put(f"a{number}"))
        assert ask(engine, put(f"b{number}")).outcomes[0].done
    for engine in early:
        with suppress(StoreUnavailable):
            ask(engine, put("a0", "a1"))
    claimed = ask(early[0], Claim("q", 50, HOUR, "w"))
    expected = ["a0", "a1", "b0", "b1", *many(20)]
    assert sorted(message.id for message in claimed.messages) == expected
    counts = ask(late, Count("q", recount=True))
    assert (counts.sizes.leased, counts.strays) == (24, 0)


@pytest.mark.parametrize("said", [1, 8])
def test_a_queue_whose_number_was_lost_keeps_it(
    open_engine: Open, url: str, client: Any, said: int
) -> None:
    ask(open_engine(f"{url}&shards=4"), put(*many(20)))
    assert client.delete("bide:queues", "bide:queues:shards") == 2
    reading, putting = (open_engine(f"{url}&shards={said}") for _ in range(2))
    with pytest.raises(StoreUnavailable, match="has lost how many shards the queue has"):
        ask(reading, Count("q"))
    assert ask(reading, Count("q")).sizes.ready == 20
    client.delete("bide:queues", "bide:queues:shards")
    assert ask(putting, put("new")).outcomes[0].done
    assert ask(reading, Queues("")) == Names(["q"])
    claimed = ask(reading, Claim("q", 50, HOUR, "w"))
    assert sorted(message.id for message in claimed.messages) == [*many(20), "new"]


def test_a_shard_that_was_lost_is_made_again(open_engine: Open, url: str, client: Any) -> None:
    engine, other = (open_engine(f"{url}&shards=4") for _ in range(2))
    ask(engine, put(*many(20)))
    for shard in (0, 2):
        client.delete(*client.keys(f"bide:{{q#{shard}}}:*"))
    left = [id for id in many(20) if shard_of(id, 4) in (1, 3)]
    claimed = ask(other, Claim("q", 50, HOUR, "w"))
    assert sorted(message.id for message in claimed.messages) == left
    assert [o.done for o in ask(engine, put(*many(20))).outcomes] == [
        id not in left for id in many(20)
    ]
    assert ask(open_engine(), Count("q", recount=True)).strays == 0


def test_what_one_process_put_stays_in_order(open_engine: Open, url: str) -> None:
    first, second = (open_engine(f"{url}&shards=4") for _ in range(2))
    ask(second, put("made"), NOW)
    ids = many(40)
    for id in ids:
        ask(first, put(id), NOW)
    claimed = ask(second, Claim("q", 41, HOUR, "w"), NOW)
    assert [message.id for message in claimed.messages if message.id != "made"] == ids


def test_what_another_process_puts_at_first_is_in_order_too(open_engine: Open, url: str) -> None:
    first, second = (open_engine(f"{url}&shards=4") for _ in range(2))
    ask(first, put(*(id for id in many(400) if shard_of(id, 4) == 0)), NOW)
    ids = [f"n{number}" for number in range(20)]
    ask(second, put(*ids), NOW)
    claimed = ask(second, Claim("q", 500, HOUR, "w"), NOW)
    assert [message.id for message in claimed.messages if message.id in ids] == ids


def test_tokens_grow_whoever_claims_where(open_engine: Open, url: str) -> None:
    engines = [open_engine(f"{url}&shards=3") for _ in range(3)]
    tokens = []
    for number in range(30):
        ask(engines[0], put(f"m{number}"))
        claimed = ask(engines[number % 3], Claim("q", 5, HOUR, "w"))
        assert isinstance(claimed, Claimed)
        tokens.append(claimed.token)
        ask(engines[0], Ack("q", [Lease(f"m{number}", claimed.token)]))
    assert tokens == sorted(set(tokens))
    assert ask(engines[0], Count("q")).flow.acked == 30


def test_a_claim_divides_its_budget_among_shards(open_engine: Open, url: str) -> None:
    engine = open_engine(f"{url}&shards=4")
    first, *others = sorted(many(200), key=lambda id: shard_of(id, 4) != 0)
    others = [id for id in others if shard_of(id, 4) != 0]
    ask(engine, Put("q", [Item(id, b"x" * 1_000, False) for id in (first, *others)]))
    claimed = ask(engine, Claim("q", 100, HOUR, "w", 10_000))
    assert claimed.messages[0].id == first
    assert 5 < len(claimed.messages) <= 10
    assert ask(engine, Count("q")).sizes.leased == len(claimed.messages)


def test_what_is_too_late_expires_though_other_shards_have_what_is_wanted(
    open_engine: Open, url: str
) -> None:
    engine = open_engine(f"{url}&shards=4")
    first, second = [id for id in many(40) if shard_of(id, 4) == 0][:2]
    late = next(id for id in many(40) if shard_of(id, 4) == 1)
    items = [
        Item(id, b"1", at=NOW - before, expires=None if id != late else 0)
        for id, before in ((first, 3), (late, 2), (second, 1))
    ]
    ask(engine, Put("q", items), NOW)
    claimed = ask(engine, Claim("q", 2, HOUR, "w"), NOW)
    assert [message.id for message in claimed.messages] == [first, second]
    assert ask(engine, Count("q"), NOW).flow.expired == 1


def test_many_who_claim_at_once_share_nothing(open_engine: Open, url: str) -> None:
    ids = many(600)
    ask(open_engine(f"{url}&shards=4"), put(*ids))
    engines = [open_engine(f"{url}&shards=4") for _ in range(4)]
    got: list[list[tuple[str, int]]] = [[] for _ in engines]

    def work(engine: RedisEngine, mine: list[tuple[str, int]]) -> None:
        while (claimed := ask(engine, Claim("q", 7, HOUR, "w"))).messages:
            mine += [(message.id, claimed.token) for message in claimed.messages]

    threads = [threading.Thread(target=work, args=pair) for pair in zip(engines, got, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(id for mine in got for id, _ in mine) == ids
    tokens = [{token for _, token in mine} for mine in got]
    assert sum(map(len, tokens)) == len(set().union(*tokens))  # no claim has another's
    acks = [Ack("q", [Lease(id, token) for id, token in mine]) for mine in got]
    for reply in engines[0].execute(acks):
        assert isinstance(reply, Outcomes)
        assert all(reply.outcomes)


def test_pages_go_on_where_they_ended_though_messages_go(open_engine: Open, url: str) -> None:
    engine = open_engine(f"{url}&shards=4")
    ids = many(100)
    for start in range(0, 100, 10):
        ask(engine, put(*ids[start : start + 10], delay=HOUR), NOW)
    seen: list[str] = []
    cursor = None
    while True:
        page = ask(engine, Scan("q", "delayed", cursor=cursor, limit=7), NOW)
        seen += [message.id for message in page.messages]
        ask(engine, Cancel("q", [message.id for message in page.messages[::2]]), NOW)
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids


def test_a_page_goes_on_with_another_shard_at_the_same_place(open_engine: Open, url: str) -> None:
    one, other = (open_engine(f"{url}&shards=2") for _ in range(2))
    for engine in (one, other):
        ask(engine, Count("q"), NOW)  # each believes that the first message is its own
    ids = [next(id for id in many(100) if shard_of(id, 2) == shard) for shard in (0, 1)]
    ask(one, put(ids[0], at=NOW), NOW)
    ask(other, put(ids[1], at=NOW), NOW)
    page = ask(one, Scan("q", "ready", limit=1), NOW)
    rest = ask(one, Scan("q", "ready", limit=1, cursor=page.cursor), NOW)
    assert [message.id for message in (*page.messages, *rest.messages)] == ids


@pytest.mark.parametrize(
    "cursor", ["0.5..0", "0.5.aaaaaaaaaaaa-bbbbbbbbbbbb.0", "0..aaaaaaaaaaaa.1", "2...0"]
)
def test_a_cursor_that_no_scan_made_is_refused(open_engine: Open, url: str, cursor: str) -> None:
    engine = open_engine(f"{url}&shards=2")
    ask(engine, put("a", "d"), NOW)
    with pytest.raises(InvalidArgument, match="is not from a scan"):
        ask(engine, Scan("q", "ready", cursor=cursor), NOW)


def test_pause_holds_in_all_shards(open_engine: Open, url: str) -> None:
    engine = open_engine(f"{url}&shards=4")
    ask(engine, put(*many(20)))
    assert ask(engine, Configure("q", paused=True)).paused
    assert ask(engine, Claim("q", 20, HOUR, "w")).messages == []
    assert ask(engine, Count("q")).paused
    ask(engine, Configure("q", paused=False))
    assert len(ask(engine, Claim("q", 20, HOUR, "w")).messages) == 20


def test_a_pause_ends_by_itself_in_all_shards(open_engine: Open, url: str) -> None:
    engine = open_engine(f"{url}&shards=4")
    ask(engine, put(*many(20)), NOW)
    paused = ask(engine, Configure("q", paused=True, paused_for=50), NOW)
    assert (paused.paused_until, paused.wake) == (NOW + 50, NOW + 50)
    claimed = ask(engine, Claim("q", 20, HOUR, "w"), NOW + 20)
    assert (claimed.messages, claimed.next) == ([], 30)
    assert ask(engine, Count("q"), NOW + 20).paused_until == NOW + 50
    assert len(ask(engine, Claim("q", 20, HOUR, "w"), NOW + 50).messages) == 20


@pytest.mark.parametrize("shards", ["0", "65", "-1", "many", "1.5"])
def test_so_many_shards_there_cannot_be(open_engine: Open, url: str, shards: str) -> None:
    with pytest.raises(InvalidArgument, match="shards"):
        open_engine(f"{url}&shards={shards}")


@pytest.mark.parametrize("size", [30, 63, 64, 200, 1_500, 5_000])
def test_much_that_is_put_at_once_stays_in_order(open_engine: Open, url: str, size: int) -> None:
    engine = open_engine(f"{url}&shards=3")
    ask(engine, put("first", "second"), NOW)
    ids = [f"m{number:05}" for number in range(2 * size)]
    half = len(ids) // 2
    engine.execute([put(*ids[:half]), put(*[f"x{id}" for id in ids[:7]]), put(*ids[half:])], NOW)
    ask(engine, put("last"), NOW)
    expected = ["first", "second", *ids[:half], *[f"x{id}" for id in ids[:7]], *ids[half:], "last"]
    claimed = ask(engine, Claim("q", len(expected), HOUR, "w"), NOW)
    assert [message.id for message in claimed.messages] == expected
    seen: list[str] = []
    cursor = None
    while not seen or cursor is not None:
        page = ask(engine, Scan("q", cursor=cursor, limit=500), NOW)
        seen += [message.id for message in page.messages]
        cursor = page.cursor
    assert sorted(seen) == sorted(expected)


def test_a_claim_leases_no_more_than_it_wants_if_others_end_what_had_expired(
    open_engine: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = (open_engine(f"{url}&shards=2") for _ in range(2))
    in_shard = [[id for id in many(99) if shard_of(id, 2) == shard] for shard in (0, 1)]
    (late, *fit), (second, *_) = in_shard
    ask(engine, put(late, priority=1, expires=1), NOW)  # ready at once, and late then
    for moment, id in enumerate([second, *fit[:9]], start=1):
        ask(engine, put(id, priority=1), NOW + moment)
    send = redis_sender(engine).send
    rounds: list[list[str]] = []

    def send_late(calls: Any, now: int | None) -> list[Any]:
        """Send calls; right before the first lease, another process ends a message."""
        rounds.append([call.script for call in calls])
        assert len(rounds) < 10
        if calls[0].script == "claim" and len(rounds) == 2:
            assert ask(other, Cancel("q", [late]), NOW + 50).outcomes[0].done
        return send(calls, now)

    monkeypatch.setattr(redis_sender(engine), "send", send_late)
    claimed = ask(engine, Claim("q", 2, HOUR, "w"), NOW + 50)
    assert [message.id for message in claimed.messages] == [second, fit[0]]
    assert ask(other, Count("q"), NOW + 50).sizes.leased == 2


def test_a_claim_is_of_the_latest_moment_of_its_shards() -> None:
    """Else a message would seem to be claimed before the lease of its last holder was over."""
    claiming = _Claiming(Claim("q", 2, HOUR, "w"))
    for moment in (997, 996):
        head: list[object] = [moment, 1, 8, HOUR, False, None, False, [], [], False]
        claiming.take((head, [], []))
    assert claiming.reply(None).now == 997


@pytest.mark.parametrize("into", [0, 2])
@pytest.mark.parametrize("behind_first", [False, True])
def test_a_put_while_a_queue_is_deleted_leaves_it_as_it_was_or_makes_it_anew(
    open_engine: Open, url: str, monkeypatch: pytest.MonkeyPatch, into: int, behind_first: bool
) -> None:
    engine, other = (open_engine(f"{url}&shards=4") for _ in range(2))
    settings: dict[str, Any] = {
        "paused": True,
        "paused_until": NOW + HOUR,
        "keep": 5,
        "history": HOUR,
    }
    ask(engine, Configure("q", **settings, result_ttl=HOUR, overdue="x"), NOW)
    for group in ("g1", "g2", "g3"):
        ask(engine, CloseGroup("q", group, HOUR), NOW)
    before = ask(engine, Count("q"), NOW)
    late = next(id for id in many(99) if shard_of(id, 4) == into)
    send = redis_sender(engine).send

    def send_late(calls: Any, now: int | None) -> list[Any]:
        """Send calls; right before it deletes shards, another process puts a message."""
        deletes = calls[0].script == "delete" and calls[0].args == (True,)
        if deletes and (calls[0].shard > 0) == behind_first:
            assert ask(other, put(late), NOW).outcomes[0].done
        return send(calls, now)

    monkeypatch.setattr("bide.engines.redis.queue_wide.SLICE", 2)  # closed groups at a time
    monkeypatch.setattr(redis_sender(engine), "send", send_late)
    deleted = ask(engine, Delete("q"), NOW)
    is_anew = behind_first and into == 0
    assert deleted == (Deleted(True) if is_anew else Deleted(False, Sizes(ready=1)))
    assert ask(other, Queues("")) == Names(["q"])
    counts = ask(other, Count("q"), NOW)
    assert counts.sizes == Sizes(ready=1)
    for name in (*settings, "result_ttl", "overdue", "closed"):
        expected = getattr(ask(other, Count("nobody")) if is_anew else before, name)
        assert getattr(counts, name) == expected, name
    ids = [f"x{number}" for number in range(20)]
    for group in ("g1", "g2", "g3"):
        stored = ask(other, put(*[f"{group}{id}" for id in ids], group=group), NOW)
        assert {outcome.done for outcome in stored.outcomes} == {is_anew}
    if not is_anew:
        ask(other, put(*ids), NOW)
        assert ask(other, Claim("q", 50, HOUR, "w"), NOW).messages == []
        assert len(ask(other, Claim("q", 50, HOUR, "w"), NOW + HOUR).messages) == 21


def test_a_group_is_closed_in_all_shards_and_in_the_first_one_last(
    open_engine: Open, url: str, client: Any
) -> None:
    engine = open_engine(f"{url}&shards=4")
    ask(engine, put(*many(20), group="g"))
    ask(engine, put(*many(20), "x", delay=HOUR))
    client.set("bide:{q#2}:closed", "not a sorted set")
    with pytest.raises(StoreError):
        ask(engine, CloseGroup("q", "g", HOUR))
    assert ask(engine, ClosedGroups("q")) == GroupsClosed([])
    client.delete("bide:{q#2}:closed")
    (closed,) = ask(engine, CloseGroup("q", "g", HOUR)).groups
    assert ask(engine, ClosedGroups("q")).groups == [closed]
    assert {client.zcard(f"bide:{{q#{shard}}}:closed") for shard in range(4)} == {1}
    assert ask(engine, Claim("q", 100, HOUR, "w")).messages == []
    counts = ask(engine, Count("q", recount=True))
    assert (counts.flow.cancelled, counts.sizes.total, counts.strays) == (20, 1, 0)
    assert ask(engine, put(*[f"y{n}" for n in range(9)], group="g")).outcomes[8].state == "closed"
    assert ask(engine, ReopenGroup("q", "g")).groups == [closed]
    assert {client.zcard(f"bide:{{q#{shard}}}:closed") for shard in range(4)} == {0}
