"""Limited queues in a file: other processes, and stores of older versions."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite.statements import migrations
from bide.model.commands import Ack, Claim, Configure, Count, Lease, Put
from bide.model.message import Item
from bide.model.replies import Claimed, Counts
from tests.engines.sqlite.older import older


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
    mine._next_hint = 0.0
    mine.execute([Ack("q", [Lease("m0", held.token)])], 1_300)
    assert notifier.listen() == [("q", 1_300)]
    assert [message.id for message in claim(others, 1_300).messages] == ["m1"]
    others.close()
    mine.close()


def test_an_older_store_gets_limits(path: Path) -> None:
    engine = SqliteEngine(path)
    items = [Item(f"m{number}", b"1", group="g") for number in range(3)]
    engine.execute([Put("q", items)], 1_000)
    claim(engine, 1_000)
    engine.execute([Put("q", [Item(f"n{number}", b"1", group="g") for number in range(3)])], 1_000)
    engine.close()
    older(path, 3)
    engine = SqliteEngine(path)
    engine.execute([Configure("q", group_limit=4)], 1_500)
    assert [message.id for message in claim(engine, 1_500).messages] == ["n0"]
    (counts,) = engine.execute([Count("q", recount=True)], 1_500)
    assert isinstance(counts, Counts)
    assert (counts.group_limit, counts.sizes.leased, counts.strays) == (4, 4, 0)
    engine.close()


def test_the_turns_of_an_older_store_are_kept(path: Path) -> None:
    """Up to version 9 a group had twice the number of its service; less one if it had entered."""
    engine = SqliteEngine(path)
    items = [Item(id, b"1", group=id[0]) for id in ("a1", "a2", "b1")]
    engine.execute([Configure("q", limit=9), Put("q", items)], 1_000)
    (claimed,) = engine.execute([Claim("q", 1, 1_000, "w")], 1_000)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["a1"]
    engine.close()
    with sqlite3.connect(path) as old:
        old.execute("UPDATE bide_limit SET turn = 1")
        old.execute("UPDATE bide_group SET turn = CASE key WHEN '=a' THEN 2 ELSE -1 END")
        old.execute("UPDATE bide_group SET rank = turn WHERE standing = 1")
        old.executescript(migrations()[9])
    old.close()
    engine = SqliteEngine(path)
    engine.execute([Put("q", [Item(id, b"1", group=id[0]) for id in ("d1", "c1")])], 1_000)
    assert [message.id for message in claim(engine, 1_000).messages] == ["b1", "d1", "c1", "a2"]
    engine.close()
