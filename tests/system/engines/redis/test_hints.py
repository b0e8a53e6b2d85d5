"""Hints: which of the lanes that wait is told of a change, and what."""

import threading
from collections.abc import Callable

import redis as client_library

from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import shard_of
from bide.model.commands import (
    Ack,
    Cancel,
    Claim,
    Command,
    Configure,
    Extend,
    Find,
    History,
    Lease,
    Put,
)
from bide.model.ended import message_hint
from bide.model.message import Item, Message
from bide.model.replies import Claimed, Found
from tests.descriptors import low_ones_taken
from tests.servers import PATIENCE, RedisServer
from tests.system.engines.redis.conftest import Open
from tests.waiting import until


def put(*ids: str, delay: int = 0) -> Put:
    return Put("q", [Item(id, b"1", delay=delay) for id in ids])


def claim(engine: RedisEngine, now: int | None = None) -> Claimed:
    (reply,) = engine.execute([Claim("q", 1, 60_000, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


_unheard: dict[RedisEngine, list[tuple[str, int]]] = {}


def hear(engine: RedisEngine) -> list[tuple[str, int]]:
    """Return the next hint; several may come at once."""
    notifier = engine.notifier()
    assert notifier is not None
    hints = _unheard.pop(engine, []) or notifier.listen()
    _unheard[engine] = hints[1:]
    return hints[:1]


NOW = 1_700_000_000_000


def commands(engine: RedisEngine, *asked: Command, now: int = NOW) -> None:
    engine.execute(asked, now)


def test_a_notifier_may_be_closed_twice_and_hears_nothing_then(open_engine: Open) -> None:
    notifier = open_engine().notifier()
    assert notifier is not None
    notifier.close()
    notifier.close()
    assert notifier.listen() == []


def test_only_the_leader_is_told_and_a_second_one_a_beat_later(open_engine: Open) -> None:
    first, second, third, putter = (open_engine() for _ in range(4))
    for number, engine in enumerate((first, second, third)):
        engine.notifier()
        assert claim(engine, NOW + number).next is None
    commands(putter, put("a", delay=500), now=NOW + 3)
    assert hear(first) == [("q", NOW + 503)]
    assert hear(second) == [("q", NOW + 553)]
    assert claim(third, NOW + 4).next is None
    assert claim(second, NOW + 5).next == 548
    assert claim(first, NOW + 6).next == 497


def test_who_waits_in_a_paused_queue_is_told_that_it_goes_on(open_engine: Open) -> None:
    waiting, other = open_engine(), open_engine()
    waiting.notifier()
    commands(other, put("a"), Configure("q", paused=True))
    assert claim(waiting, NOW + 1).next is None
    commands(other, Configure("q", paused=False), now=NOW + 2)
    assert hear(waiting) == [("q", NOW + 2)]


def test_who_waits_in_a_paused_queue_is_told_when_that_ends(open_engine: Open) -> None:
    waiting, other = open_engine(), open_engine()
    waiting.notifier()
    commands(other, put("a"), Configure("q", paused=True))
    assert claim(waiting, NOW + 1).next is None
    commands(other, Configure("q", paused=True, paused_for=500), now=NOW + 2)
    assert hear(waiting) == [("q", NOW + 502)]
    assert claim(waiting, NOW + 3).next == 499


def test_who_waits_for_a_result_is_told_of_the_end(open_engine: Open) -> None:
    waiting, worker = open_engine(), open_engine()
    waiting.notifier()
    commands(worker, Configure("q", result_ttl=60_000), put("a"), put("b"))
    commands(waiting, History("q", "b", watch=True))
    for id in ("a", "b"):
        (message,) = (claimed := claim(worker, NOW)).messages
        commands(worker, Ack("q", [Lease(message.id, claimed.token)], results=[b"1"]))
        assert hear(waiting) == [(message_hint("q", id), 0)]


def test_an_earlier_moment_is_told_to_the_leader_and_a_later_one_to_nobody(
    open_engine: Open,
) -> None:
    leader, putter = open_engine(), open_engine()
    leader.notifier()
    claim(leader, NOW)
    commands(putter, put("a", delay=500))
    commands(putter, put("same", delay=500))
    commands(putter, put("late", delay=900))
    commands(putter, Configure("q", keep=5))
    commands(putter, put("soon", delay=100))
    assert [hear(leader), hear(leader)] == [[("q", NOW + 500)], [("q", NOW + 100)]]


def test_a_leader_that_looked_again_is_told_of_what_is_due_before_it_looks_next(
    open_engine: Open,
) -> None:
    leader, putter = open_engine(), open_engine()
    leader.notifier()
    commands(putter, put("a", delay=500), put("late", delay=900))
    assert claim(leader, NOW).next == 500
    commands(putter, Cancel("q", ["a"]))
    assert claim(leader, NOW).next == 900
    commands(putter, put("b", delay=700))
    assert hear(leader) == [("q", NOW + 700)]


def test_a_leader_that_got_something_hands_over(open_engine: Open) -> None:
    first, second, putter = (open_engine() for _ in range(3))
    for number, engine in enumerate((first, second)):
        engine.notifier()
        claim(engine, NOW + number)
    commands(putter, put("a", "b"), now=NOW + 2)
    assert hear(first) == [("q", NOW + 2)]
    assert len(claim(first, NOW + 3).messages) == 1
    told = [hear(second)[0][1] for _ in range(2)]
    assert told == [NOW + 52, NOW + 3]  # as the second at first, then as the one who leads


def test_a_leader_that_hangs_delays_the_second_one_by_a_beat(open_engine: Open) -> None:
    hanging, second, putter = (open_engine() for _ in range(3))
    for number, engine in enumerate((hanging, second)):
        engine.notifier()
        claim(engine, NOW + number)
    commands(putter, put("a", delay=500), now=NOW + 2)
    ((_, moment),) = hear(second)
    assert moment - (NOW + 502) <= 100
    assert len(claim(second, moment).messages) == 1


def test_who_finds_an_earlier_moment_leads_if_the_leader_has_died(open_engine: Open) -> None:
    holder, waiting, leader = (open_engine() for _ in range(3))
    commands(holder, put("a"), put("later", delay=500))
    held = claim(holder, NOW)
    for engine in (leader, waiting):
        engine.notifier()
    assert claim(leader, NOW).next == 500
    assert claim(waiting, NOW).next == 550
    commands(holder, Extend("q", [Lease("a", held.token)], 200))  # of whose end nobody is told
    leader.close()
    assert claim(waiting, NOW + 1).next == 199


def test_who_has_died_is_passed_over_at_once(open_engine: Open) -> None:
    dead, second, putter = (open_engine() for _ in range(3))
    for number, engine in enumerate((dead, second)):
        engine.notifier()
        claim(engine, NOW + number)
    dead.close()
    commands(putter, put("a", delay=500), now=NOW + 2)
    assert hear(second) == [("q", NOW + 502)]


def test_who_did_not_claim_when_it_was_to_counts_no_longer(open_engine: Open) -> None:
    first, second, third, putter = (open_engine() for _ in range(4))
    for number, engine in enumerate((first, second, third)):
        engine.notifier()
        claim(engine, NOW + number)
    commands(putter, put("a", delay=500), put("b", delay=900), now=NOW + 3)
    commands(putter, Cancel("q", ["a"]), now=NOW + 4)
    assert claim(third, NOW + 5).next is None
    assert claim(third, NOW + 560).next == 393
    assert claim(third, NOW + 700).next == 203


def test_of_very_many_who_have_died_the_latest_stay(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    commands(engine, put("a", delay=60_000))
    dead = {f"dead{number:05}": 2**50 + number for number in range(5_000)}
    server.zadd("bide:{q#0}:waiters", dead | {"dead": NOW + 1_000})
    server.hset("bide:{q#0}:meta", "flags", "l")
    assert engine.notifier() is not None
    claim(engine, NOW)
    assert server.zcard("bide:{q#0}:waiters") == 1_000
    commands(engine, put("b"))
    assert hear(engine)[0][0] == "q"


def test_a_process_with_many_open_files_hears(open_engine: Open) -> None:
    with low_ones_taken():
        waiter, putter = open_engine(), open_engine()
        waiter.notifier()
        claim(waiter, NOW)
        commands(putter, put("a", delay=500), now=NOW + 2)
        assert hear(waiter) == [("q", NOW + 502)]
        waiter.close()


def test_a_shard_tells_who_leads_there(open_engine: Open, url: str) -> None:
    first, second, putter = (open_engine(f"{url}&shards=2") for _ in range(3))
    commands(putter, Configure("q"))
    for number, engine in enumerate((first, second)):
        engine.notifier()
        assert claim(engine, NOW + number).next is None
    assert [shard_of(id, 2) for id in ("a", "d")] == [1, 0]
    commands(putter, put("a", delay=500), now=NOW + 2)
    assert [hear(first), hear(second)] == [[("q", NOW + 502)], [("q", NOW + 552)]]
    commands(putter, put("d", delay=300), now=NOW + 2)
    assert [hear(first), hear(second)] == [[("q", NOW + 302)], [("q", NOW + 352)]]


def test_who_got_something_waits_in_no_shard(
    open_engine: Open, redis_server: RedisServer, url: str
) -> None:
    engine, putter = (open_engine(f"{url}&shards=4") for _ in range(2))
    engine.notifier()
    commands(putter, Configure("q"))
    claim(engine, NOW)
    commands(putter, put("a"), now=NOW)
    assert len(claim(engine, NOW).messages) == 1
    client = redis_server.client(db=int(url.rpartition("=")[2]))
    for shard in range(4):
        assert not client.exists(f"bide:{{q#{shard}}}:waiters")
    client.close()


def test_the_wait_counts_from_the_servers_clock_to_the_microsecond(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    engine.execute([put("a", delay=60_000)])
    due = found(engine).due * 1000
    for _ in range(20):
        before = micros(server)
        next = claim(engine).next
        assert next is not None
        assert before - 1 <= due - next * 1000 <= micros(server) + 1


def found(engine: RedisEngine) -> Message:
    (reply,) = engine.execute([Find("q", ["a"])])
    assert isinstance(reply, Found)
    (message,) = reply.messages
    assert message is not None
    return message


def micros(server: "client_library.Redis") -> int:
    seconds, part = server.time()
    return int(seconds) * 1_000_000 + int(part)


def test_a_claim_of_somebody_who_does_not_wait_leads_nobody(
    open_engine: Open, redis_server: RedisServer, url: str
) -> None:
    engine = open_engine()
    engine.execute([put("a", delay=60_000)])
    claim(engine)
    client = redis_server.client(db=int(url.rpartition("=")[2]))
    assert not client.exists("bide:{q#0}:waiters")
    client.close()


def test_a_notifier_knows_whether_its_server_is_there(
    open_engine: Open, start: Callable[..., RedisServer]
) -> None:
    server = start()
    engine = open_engine(server.url)
    notifier = engine.notifier()
    assert notifier is not None
    assert notifier.is_listening
    listening = threading.Thread(target=notifier.listen)
    listening.start()
    server.stop()
    until(lambda: not notifier.is_listening)
    server.start()
    until(lambda: notifier.is_listening)
    notifier.close()
    listening.join(PATIENCE)
    assert not listening.is_alive()
