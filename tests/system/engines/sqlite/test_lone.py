"""A put of one message takes a way of its own, on which the counters of its queue stay behind."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Counts, QueueSettings
from bide.testing.conformance.driver import START, Driver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bide.db"


@pytest.fixture
def driver(path: Path) -> Iterator[Driver]:
    engine = SqliteEngine(path, durability="normal")
    engine.execute([cmd.Put(name, [Item("first", b"1")]) for name in ("q", "other")], START)
    yield Driver(engine, watched=False)
    engine.close()


def behind(path: Path) -> int:
    """Return how many messages the counters in the file do not know of."""
    raw = sqlite3.connect(path)
    (total,) = raw.execute("SELECT count(*) FROM bide_message").fetchone()
    (counted,) = raw.execute("SELECT sum(put) FROM bide_queue").fetchone()
    raw.close()
    return int(total - counted)


def put_everywhere(driver: Driver, count: int) -> None:
    for number in range(count):
        for name in ("q", "other"):
            driver.batch(cmd.Put(name, [Item(f"m{number}", b"1", delay=5)]))


def size(engine: SqliteEngine, name: str) -> int:
    (counts,) = engine.execute([cmd.Count(name, recount=True)], START)
    assert isinstance(counts, Counts)
    assert counts.recount == counts.sizes
    assert counts.flow.put == counts.sizes.total
    return counts.sizes.total


def test_who_looks_sees_what_the_counters_do_not_know_yet(driver: Driver, path: Path) -> None:
    put_everywhere(driver, 10)
    assert behind(path) > 0
    reader = SqliteEngine(path, read_only=True)
    assert size(reader, "q") == size(reader, "other") == 11
    reader.close()
    assert behind(path) > 0


def test_a_change_of_one_queue_counts_for_all(driver: Driver, path: Path) -> None:
    put_everywhere(driver, 10)
    driver.ask(cmd.Configure("q", paused=True), QueueSettings)
    assert behind(path) == 0


def test_the_counters_never_stay_far_behind(driver: Driver, path: Path) -> None:
    put_everywhere(driver, 1_200)
    assert 0 < behind(path) < 1_001


def test_another_process_that_changes_the_queue_counts(driver: Driver, path: Path) -> None:
    put_everywhere(driver, 3)
    beside = Driver(SqliteEngine(path, durability="normal"), watched=False)
    beside.cancel("m0", "m1", "m2")
    assert behind(path) == -3  # what is gone was put as well
    put_everywhere(beside, 2)
    beside.engine.close()
    assert driver.counts().sizes.total == 3


def test_a_put_after_the_last_message_has_left_is_counted(driver: Driver) -> None:
    for round in range(3):
        driver.put(f"a{round}")
        driver.cancel("first", f"a{round}")  # the last message of the store, and its number with it
        driver.batch(cmd.Cancel("other", ["first"]))
    assert driver.counts().flow.put == 4
    assert driver.counts().sizes.total == 0


def test_the_first_weight_is_remembered(driver: Driver) -> None:
    driver.put("light", delay=1)
    driver.put("heavy", priority=9, delay=2)
    driver.wait(2)
    assert driver.take() == ["heavy", "first", "light"]
