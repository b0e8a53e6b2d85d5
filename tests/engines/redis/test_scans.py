"""Scans of all records, in the order of the buckets of a hash: whatever becomes of that hash."""

from bide.engines.redis import RedisEngine
from bide.model.commands import Cancel, Find, Put, Scan
from bide.model.message import Item
from bide.model.replies import Page

HOUR = 3_600_000
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
