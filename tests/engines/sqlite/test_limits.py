"""Limited queues in a file, and other processes."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Ack, Claim, Configure, Lease, Put
from bide.model.message import Item
from bide.model.replies import Claimed


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
