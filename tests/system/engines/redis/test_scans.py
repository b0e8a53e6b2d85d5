"""Scans of all messages, whatever moves meanwhile: messages, or the buckets of a hash."""

from typing import TYPE_CHECKING

import pytest

from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import meta_key
from bide.model.commands import (
    Cancel,
    Claim,
    Find,
    Lease,
    Put,
    Reschedule,
    RetryCommand,
    Scan,
    Where,
)
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Claimed, Page

if TYPE_CHECKING:
    import redis

HOUR = 3_600_000
NOW = 1_800_000_000_000
IDS = [f"m{number:04}" for number in range(512)]
STAY = IDS[::12]


def test_a_hash_that_shrinks_meanwhile_hides_no_message(engine: RedisEngine) -> None:
    for pages in range(20, 320, 20):
        queue, cursor, seen = f"q{pages}", None, set()
        engine.execute([Put(queue, [Item(id, b'"' + b"x" * 90 + b'"', delay=HOUR) for id in IDS])])
        for limit in (*[1] * pages, *[500] * 9):
            (page,) = engine.execute([Scan(queue, cursor=cursor, limit=limit)])
            assert isinstance(page, Page)
            seen |= {message.id for message in page.messages}
            cursor = page.cursor
            if cursor is None:
                break
            if len(seen) == pages and limit == 1:
                engine.execute([Cancel(queue, sorted({*IDS} - {*STAY}))])
                engine.execute([Find(queue, IDS)])  # each look moves a bucket to the smaller table
        assert cursor is None
        assert seen >= {*STAY}


def test_a_message_that_a_claim_moves_meanwhile_is_not_missed(engine: RedisEngine) -> None:
    items = [Item(id, b"1", at=NOW + at, priority=1) for at, id in enumerate(["a", "b", "c"])]
    engine.execute([Put("q", items)], NOW)
    seen, cursor = set(), None
    while True:
        scan = Scan("q", where=Where(before=NOW + HOUR), limit=1, cursor=cursor)
        (page,) = engine.execute([scan], NOW)
        assert isinstance(page, Page)
        seen |= {message.id for message in page.messages}
        if page.cursor is None:
            break
        if cursor is None:
            engine.execute([Claim("q", 1, 10 * HOUR, "w")], NOW + 1)  # b is moved to ready
        cursor = page.cursor
    assert seen == {"a", "b", "c"}


SOON = Where(before=NOW + HOUR)


def page_of(engine: RedisEngine, cursor: str | None = None, limit: int = 500) -> Page:
    (page,) = engine.execute([Scan("q", where=SOON, limit=limit, cursor=cursor)], NOW + 1)
    assert isinstance(page, Page)
    return page


def test_a_scan_misses_no_return_though_a_fail_over_loses_changes(
    engine: RedisEngine, server: "redis.Redis"
) -> None:
    engine.execute([Put("q", [Item("held", b"1", at=NOW)])], NOW)
    (claimed,) = engine.execute([Claim("q", 1, HOUR, "w")], NOW)
    assert isinstance(claimed, Claimed)
    engine.execute([Put("q", [Item(id, b"1", at=NOW + 9) for id in IDS])], NOW)
    page = page_of(engine, limit=5)
    server.hset(meta_key("q"), "change", 1)
    engine.execute([RetryCommand("q", [Lease("held", claimed.token)], delay=3)], NOW + 1)
    assert "held" in [message.id for message in page_of(engine, page.cursor, 1_000).messages]


def test_a_scan_repeats_no_message_after_a_shard_has_lost_its_counters(
    engine: RedisEngine, server: "redis.Redis"
) -> None:
    engine.execute([Put("q", [Item(id, b"1", at=NOW + 9) for id in IDS])], NOW)
    for _ in range(9):
        engine.execute([Reschedule("q", IDS, NOW + 9)], NOW)
    server.delete(meta_key("q"))
    engine.execute([Cancel("q", IDS[:1])], NOW)
    assert len(page_of(engine, limit=1_000).messages) == len(IDS) - 1


def test_tokens_grow_though_a_shard_has_lost_its_counters(
    engine: RedisEngine, server: "redis.Redis"
) -> None:
    tokens = []
    engine.execute([Put("q", [Item(id, b"1", at=NOW) for id in IDS])], NOW)
    for later in range(3):
        (claimed,) = engine.execute([Claim("q", 1, HOUR, "w")], NOW + later)
        assert isinstance(claimed, Claimed)
        tokens.append(claimed.token)
        if later == 0:
            server.delete(meta_key("q"))
    assert tokens == [NOW + 1, NOW + 2, NOW + 3]


def test_a_cursor_that_is_no_number_of_redis_is_refused(engine: RedisEngine) -> None:
    engine.execute([Put("q", [Item("a", b"1", at=NOW)])], NOW)
    for cursor in ("0.99999999999999999999..0", "7.99999999999999999999..0~0~0", "0.0..0~1~"):
        for where in (None, SOON):
            with pytest.raises(InvalidArgument, match="is not from a scan"):
                engine.execute([Scan("q", where=where, cursor=cursor)], NOW)
