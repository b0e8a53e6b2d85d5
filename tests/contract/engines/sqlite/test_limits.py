"""Limited queues in a file, and other processes."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite.schema import APPLICATION_ID, STEPS
from bide.model.commands import Ack, Claim, Configure, Count, Lease, Put
from bide.model.message import Item
from bide.model.replies import Claimed, Counts


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(mkdtemp(prefix="bide"))  # short: an address of a socket has 100 characters
    yield folder / "q.db"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def claim(engine: SqliteEngine, now: int) -> Claimed:
    (reply,) = engine.execute([Claim("q", 9, 1_000, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def test_the_end_of_a_lease_wakes_those_who_wait_in_other_processes(path: Path) -> None:
    mine, others = SqliteEngine(path), SqliteEngine(path)
    notifier = others.notifier()
    assert notifier is not None
    items = [Item(f"m{number}", b"1") for number in range(3)]
    mine.execute([Configure("q", limit=1), Put("q", items)], 1_000)
    held = claim(mine, 1_000)
    assert claim(others, 1_000).next == 1_000
    notifier.listen()  # of the settings and the put
    mine.next_hint = 0.0
    mine.execute([Ack("q", [Lease("m0", held.token)])], 1_300)
    assert notifier.listen() == [("q", 1_300)]
    assert [message.id for message in claim(others, 1_300).messages] == ["m1"]
    others.close()
    mine.close()


OLDER = """
PRAGMA application_id = {mark};
UPDATE bide_store SET schema_version = 3, counted = 7;
INSERT INTO bide_queue (id, name, limited, token, delayed, ready, leased, put)
VALUES (1, 'q', 1, 5, 1, 4, 2, 7);
INSERT INTO bide_message (seq, queue, id, due, priority, attempt, attempts, "group", created, data)
SELECT column1, 1, column2, column3, 0, 0, 9, column4, 1000000, '1'
FROM (VALUES
  (1, 'a1', 1000000, 'a'), (2, 'n1', 1000000, NULL), (3, 'a2', 1000000, 'a'),
  (4, 'a3', 1000000, 'a'),
  (5, 'b1', 1000000, 'b'), (6, 'c1', 1000000, 'c'), (7, 'later', 1004000, 'idle'));
INSERT INTO bide_lease (seq, queue, token, since, until, holder)
VALUES (1, 1, 5, 1000000, 1009000, 'w'), (2, 1, 5, 1000000, 1009000, 'w');
INSERT INTO bide_pending (queue, state, rank, seq)
SELECT 1, 1, 255 * 4398046511104 + due, seq FROM bide_message WHERE seq IN (3, 4, 5, 6);
INSERT INTO bide_pending VALUES (1, 0, 1004000 * 256 + 255, 7);
INSERT INTO bide_due_hour VALUES (1, 1, 5);  -- rounded up, as until version 9
INSERT INTO bide_limit VALUES (1, 5, 0, 2, 2000000, 8192, 999900000, 0, -1, -1, '');
INSERT INTO bide_group (queue, key, running, waiting, turn, last, freed, standing, rank) VALUES
  (1, '', 1, 0, 4096, 999900000, 0, 0, 999900000),
  (1, '=a', 1, 1, 8192, 999900000, 0, 2, 999900000),
  (1, '=b', 0, 1, 4097, 0, 0, 1, 4097),
  (1, '=idle', 0, 0, 4096, 1003500000, 0, 3, 1003500000);
INSERT INTO bide_line SELECT 1, '=a', rank, seq FROM bide_pending WHERE seq = 3;
INSERT INTO bide_line SELECT 1, '=b', rank, seq FROM bide_pending WHERE seq = 5
"""
"""What a version 3 has of a queue with limits, of which two messages are in no line yet."""


def test_a_limited_queue_of_an_older_layout_goes_on(path: Path) -> None:
    older = sqlite3.connect(path)
    older.executescript("".join(STEPS[:3]))
    older.executescript(OLDER.format(mark=APPLICATION_ID))
    older.commit()
    engine = SqliteEngine(path)
    with pytest.raises(sqlite3.OperationalError, match="no such column: turn"):
        older.execute("SELECT turn FROM bide_group")  # as a worker that still runs would
    sound(engine, 1_000_100, ready=4, leased=2)
    assert ids(claim(engine, 1_000_100)) == ["b1", "c1"]
    engine.execute([Ack("q", [Lease("n1", 5), Lease("a1", 5)])], 1_000_200)
    assert ids(claim(engine, 1_001_099)) == []  # the rate of a
    held = claim(engine, 1_001_900)
    assert ids(held) == ["a2"]
    engine.execute([Ack("q", held.leases)], 1_001_900)
    held = claim(engine, 1_003_900)
    assert sorted(ids(held)) == ["a3", "b1", "c1"]
    engine.execute([Ack("q", held.leases)], 1_003_900)
    assert ids(claim(engine, 1_005_499)) == []  # the rate of the group that had nothing
    assert ids(claim(engine, 1_005_500)) == ["later"]
    sound(engine, 1_005_500, ready=0, leased=1)
    older.close()
    engine.close()


def ids(claimed: Claimed) -> list[str]:
    return [message.id for message in claimed.messages]


def sound(engine: SqliteEngine, now: int, *, ready: int, leased: int) -> None:
    (counts,) = engine.execute([Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert (counts.sizes.ready, counts.sizes.leased, counts.strays) == (ready, leased, 0)
