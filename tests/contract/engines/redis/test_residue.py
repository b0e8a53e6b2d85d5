"""What is stored for a message, and that nothing of it stays behind."""

from collections.abc import Callable
from typing import Any

import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import (
    Ack,
    BuryCommand,
    Cancel,
    Claim,
    Delete,
    Extend,
    Lease,
    Put,
    Release,
    Reschedule,
    RetryCommand,
    Revive,
    Scan,
    Where,
)
from bide.model.message import Item
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Page
from tests.contract.engines.redis.claims import LEASE, NOW, claim, key, of, put, settle, sound
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

WEEK = 604_800
SETS = ("records", "delayed", "ready", "kept", "leases", "leased", "groups")


def test_nothing_stays_behind(engine: RedisEngine, server: "client_library.Redis") -> None:
    put(engine, 30, group="g")
    assert all(settle(engine, Cancel("q", ["m0000", "m0001"])))
    engine.execute([Cancel("q", where=Where(group="g", before=NOW))], NOW)
    claimed = claim(engine, 20)
    assert all(settle(engine, Ack("q", of(claimed)[:10])))
    assert all(settle(engine, Extend("q", of(claimed)[10:], 2 * LEASE)))
    assert all(settle(engine, RetryCommand("q", of(claimed)[10:15])))
    assert all(settle(engine, BuryCommand("q", of(claimed)[15:], "bad")))
    assert all(settle(engine, Revive("q", [lease.id for lease in of(claimed)[15:]])))
    assert sound(engine).sizes.ready == 18
    rest = claim(engine)
    assert all(settle(engine, Ack("q", of(rest))))
    assert sound(engine).flow.acked == 28
    assert server.exists(*map(key, SETS)) == 0


def test_a_queue_that_is_not_there_leaves_nothing_for_ever(
    engine: RedisEngine, open_engine: Open, server: "client_library.Redis"
) -> None:
    others = [open_engine(), open_engine()]
    for other in others:
        assert other.notifier() is not None
        other.execute([Claim("q", 1, LEASE, "w")])  # of a queue that nobody ever makes
    assert 0 < server.ttl(key("meta")) == server.ttl(key("waiters")) <= WEEK
    engine.execute([Put("q", [Item("a", b"1", delay=1_000_000)])])
    for other in others:
        other.execute([Claim("q", 1, LEASE, "w")])
    assert server.ttl(key("meta")) == server.ttl(key("waiters")) == -1
    engine.execute([Cancel("q", ["a"]), Delete("q")])
    assert 0 < server.ttl(key("meta")) == server.ttl(key("waiters")) <= WEEK


def test_the_last_token_of_a_deleted_queue_stays_until_the_clock_has_passed_it(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 1)
    server.hset(key("meta"), "token", NOW + 3 * WEEK * 1_000)
    claimed = claim(engine)
    assert all(settle(engine, Ack("q", of(claimed))))
    engine.execute([Delete("q")], NOW)
    assert 3 * WEEK - 60 < server.ttl(key("meta")) <= 3 * WEEK + 1
    put(engine, 1)
    assert claim(engine).token > claimed.token
    assert server.ttl(key("meta")) == -1


def test_what_is_deleted_is_read_a_part_at_a_time(
    start: Callable[..., RedisServer], open_engine: Open
) -> None:
    """On a server of its own: it tells the most that it ever used."""
    server = start()
    engine = open_engine(server.url)
    items = [Item(f"m{n}", b"x" * 50_000, False, delay=10, group="g") for n in range(400)]
    engine.execute([Put("q", items)], NOW)
    with client_library.Redis.from_url(server.url) as client:
        before = client.info("memory")["used_memory"]
        engine.execute([Cancel("q", where=Where(after=NOW))], NOW)
        assert client.info("memory")["used_memory_peak"] - before < 200 * 50_000
    assert sound(engine).flow.cancelled == 400


def test_a_claim_reads_few_more_large_messages_than_it_brings(
    engine: RedisEngine, server: Any
) -> None:
    large = [Item(f"m{number}", b"x" * 100_000, json=False) for number in range(100)]
    engine.execute([Put("q", large)], NOW)
    with server.monitor() as monitor:
        (claimed,) = engine.execute([Claim("q", 100, LEASE, "w", max_bytes=1_000_000)], NOW)
        server.echo("end")
        told = list(iter(lambda: monitor.next_command()["command"], "ECHO end"))
    assert isinstance(claimed, Claimed)
    assert len(claimed.messages) == 9
    read = [command for command in told if command.startswith("HMGET") and ":records" in command]
    assert sum(len(command.split()) - 2 for command in read) == 10


def test_leases_of_one_moment_are_scanned_in_the_order_of_puts(engine: RedisEngine) -> None:
    ids = put(engine, 40)
    for first in (20, 0):
        claim(engine, 20, NOW + first)
    found: list[str] = []
    cursor: str | None = None
    while not found or cursor is not None:
        (page,) = engine.execute([Scan("q", "leased", cursor=cursor, limit=7)], NOW)
        assert isinstance(page, Page)
        found += [message.id for message in page.messages]
        cursor = page.cursor
    assert found == ids[20:] + ids[:20]


def test_a_lapse_is_collected_a_share_at_a_time(engine: RedisEngine) -> None:
    """However many are taken back, a claim goes on until it has its own."""
    ids = put(engine, 700)
    claim(engine, 700)
    assert [m.id for m in claim(engine, 50, NOW + LEASE).messages] == ids[:50]
    assert sound(engine, NOW + LEASE).sizes.ready == 650


def test_a_claim_that_meets_messages_which_are_too_late_promotes_no_more_for_that(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    late = [Item(f"m{n}", b"1", at=NOW - 9, priority=1, expires=1) for n in range(PROMOTE + 100)]
    engine.execute([Put("q", late)], NOW)
    assert claim(engine, 1).messages == []
    assert server.zcard(key("delayed")) == 100
    assert server.zcard(key("kept")) == PROMOTE


def test_what_is_replaced_keeps_its_place(engine: RedisEngine) -> None:
    put(engine, 3)
    engine.execute([Put("q", [Item("m0001", b"2", group="h")], "replace")], NOW)
    assert [message.id for message in claim(engine, 3).messages] == ["m0000", "m0001", "m0002"]
    sound(engine)


def test_a_scan_by_due_time_reads_nothing_else(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    items = [Item(f"m{number}", b"1", at=NOW + number) for number in range(1, 5_001)]
    engine.execute([Put("q", items)], NOW)
    before = _calls(server, "hmget")  # how scripts read records, 32 or so at a time
    (page,) = engine.execute([Scan("q", "delayed", Where(after=NOW + 4_990), limit=5)], NOW)
    assert isinstance(page, Page)
    assert [message.id for message in page.messages] == [f"m{n}" for n in range(4_990, 4_995)]
    assert _calls(server, "hmget") - before < 10


def test_commands_that_name_different_messages_are_one_call(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 1)
    leases = [[Lease.of(id, "1")] for id in "abc"]
    batches: list[list[Any]] = [
        [Put("q", [Item(id, b"1")]) for id in "abc"],
        *([kind("q", [id]) for id in "abc"] for kind in (Cancel, Release, Revive)),
        [Reschedule("q", [id], delay=1) for id in "abc"],
        *([kind("q", named) for named in leases] for kind in (Ack, BuryCommand, RetryCommand)),
        [Extend("q", named, LEASE) for named in leases],
    ]
    for batch in batches:
        before = _calls(server, "fcall")
        assert len(engine.execute(batch, NOW)) == 3
        assert _calls(server, "fcall") - before == 1, batch


def _calls(server: "client_library.Redis", name: str) -> int:
    """Return how often the server has executed a command so far."""
    return int(server.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])


def test_who_waits_for_several_shards_writes_nothing(
    open_engine: Open, url: str, server: "client_library.Redis"
) -> None:
    """Else a hundred idle workers fill the append-only file."""
    engine = open_engine(f"{url}&shards=4")
    engine.notifier()
    engine.execute([Put("q", [Item("a", b"1", delay=LEASE), Item("d", b"1", delay=LEASE)])])
    claims = [Claim("q", 1, LEASE, "w")]
    engine.execute(claims)
    before = server.info("persistence")["rdb_changes_since_last_save"]
    for _ in range(3):
        engine.execute(claims)
    assert server.info("persistence")["rdb_changes_since_last_save"] == before
