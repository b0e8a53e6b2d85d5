"""Whoever looks does not wait behind whoever writes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Count, Find, Scan, Where
from bide.model.replies import Counts
from bide.testing.faults import FlakyEngine
from tests.lane.commands import PATIENCE, claim, put, spawn, waiting

READS = [
    Count("q"),
    Find("q", ["a"]),
    Scan("q"),
    Cancel("q", where=Where(group="g"), dry_run=True),
]


@pytest.fixture
def writer(tmp_path: Path) -> FlakyEngine:
    return FlakyEngine(SqliteEngine(tmp_path / "bide.db"))


@pytest.fixture
def busy(writer: FlakyEngine) -> Iterator[Lane]:
    """A lane in which nobody has looked yet."""
    lane = Lane(lambda: writer)
    lane.call(put("a"))
    yield lane
    lane.close()


@pytest.mark.parametrize("command", READS, ids=lambda command: type(command).__name__)
def test_a_thread_that_looks_does_not_wait_for_a_stuck_writer(
    busy: Lane, writer: FlakyEngine, command: Count
) -> None:
    with writer.held():
        stuck = spawn(busy.call, put("b"))
        writer.wait_until_held()
        spawn(busy.call, command).result(PATIENCE)
        assert not stuck.done()
    stuck.result(PATIENCE)


@pytest.mark.parametrize("command", READS, ids=lambda command: type(command).__name__)
def test_a_task_that_looks_does_not_wait_for_a_stuck_writer(
    busy: Lane, writer: FlakyEngine, command: Count
) -> None:
    async def main() -> None:
        with writer.held():
            stuck = asyncio.create_task(busy.acall(put("b")))
            await asyncio.to_thread(writer.wait_until_held)
            await asyncio.wait_for(busy.acall(command), PATIENCE)
            assert not stuck.done()
        await stuck

    asyncio.run(main())


def test_looking_shows_what_was_confirmed_before(busy: Lane) -> None:
    for number in range(20):
        busy.call(put(f"m{number}"))
        reply = busy.call(Count("q"))
        assert isinstance(reply, Counts)
        assert reply.sizes.ready == number + 2


def test_a_store_in_which_reading_waits_for_nobody_has_one_engine(
    lane: Lane, engine: FlakyEngine
) -> None:
    lane.call(Count("q"))
    asyncio.run(lane.acall(Count("q")))
    assert engine.batches == [[Count("q")]] * 2


def test_the_first_look_opens_a_store_that_nobody_has_used(tmp_path: Path) -> None:
    lane = Lane(lambda: SqliteEngine(tmp_path / "bide.db"))
    reply = asyncio.run(lane.acall(Count("q")))
    assert isinstance(reply, Counts)
    assert reply.sizes.total == 0
    lane.close()


def test_closing_closes_the_second_connection_too(busy: Lane, tmp_path: Path) -> None:
    busy.call(Count("q"))
    spawn(busy.call, claim(queue="empty"), wait=60)
    waiting(busy)
    busy.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bide.db"]


def test_what_a_store_can_do_is_told_while_its_writer_is_stuck(
    busy: Lane, writer: FlakyEngine
) -> None:
    with writer.held():
        stuck = spawn(busy.call, put("b"))
        writer.wait_until_held()
        assert spawn(lambda: busy.capabilities).result(PATIENCE).shared
        assert not stuck.done()
    stuck.result(PATIENCE)
