"""Scans of all messages, whatever moves meanwhile: messages, or the buckets of a hash."""

from bide.engines.redis import RedisEngine
from bide.model.commands import Cancel, Claim, Find, Put, Scan, Where
from bide.model.message import Item
from bide.model.replies import Page

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
