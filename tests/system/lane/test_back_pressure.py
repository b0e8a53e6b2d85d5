"""The inbox is bounded: who brings more waits; who only reads does not wait behind writers."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.lane import inbox
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Count, Find, Scan, Where
from bide.model.errors import Closed
from bide.model.replies import Counts, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import batch_waits, count_submitted, inbox_of
from tests.unit.lane.commands import PATIENCE, claim, gathered, put, sizes, spawn, waiting
from tests.waiting import until


@pytest.fixture
def narrow(
    engine: FlakyEngine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lane]:
    monkeypatch.setattr(inbox, "LIMIT", 2)
    lane = Lane(lambda: engine, clock)
    yield lane
    lane.close()


def fill(lane: Lane, engine: FlakyEngine) -> "list[Future[Reply]]":
    """With the engine held: one thread is at it, the lane at the door, and the inbox full."""
    futures = [spawn(lane.call, put("alone"))]
    engine.wait_until_held()
    futures.append(spawn(lane.call, put("batch")))
    until(lambda: batch_waits(lane))
    for number in (1, 2):
        futures.append(spawn(lane.call, put(f"inbox{number}")))
        gathered(lane, number)
    return futures


def blocked(lane: Lane) -> int:
    return inbox_of(lane).blocked


def test_a_thread_blocks_until_there_is_room(narrow: Lane, engine: FlakyEngine) -> None:
    with engine.held():
        futures = fill(narrow, engine)
        late = spawn(narrow.call, put("late"))
        until(lambda: blocked(narrow) == 1)
        assert count_submitted(narrow) == 2
    for future in [*futures, late]:
        future.result(PATIENCE)


def test_a_task_awaits_until_there_is_room(narrow: Lane, engine: FlakyEngine) -> None:
    async def main() -> None:
        with engine.held():
            futures = await asyncio.to_thread(fill, narrow, engine)
            late = asyncio.create_task(narrow.acall(put("late")))
            await asyncio.to_thread(until, lambda: blocked(narrow) == 1)
            assert count_submitted(narrow) == 2
        await asyncio.wait_for(late, PATIENCE)
        for future in futures:
            future.result(PATIENCE)

    asyncio.run(main())


def test_who_finds_room_after_all_does_not_wait(narrow: Lane) -> None:
    async def main() -> None:
        await asyncio.wait_for(inbox_of(narrow).wait_on(asyncio.get_running_loop()), PATIENCE)

    asyncio.run(main())


def test_a_cancelled_task_takes_nobodys_place(narrow: Lane, engine: FlakyEngine) -> None:
    async def main() -> None:
        with engine.held():
            await asyncio.to_thread(fill, narrow, engine)
            late = [asyncio.create_task(narrow.acall(put(f"late{n}"))) for n in range(6)]
            await asyncio.to_thread(until, lambda: blocked(narrow) == 6)
            for task in late[:4]:
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*late[4:]), PATIENCE)

    asyncio.run(main())


def test_a_task_cancelled_when_it_was_let_in_leaves_its_place_to_the_next(
    narrow: Lane, engine: FlakyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        leaving: dict[asyncio.Future[None], asyncio.Task[Reply]] = {}
        real = inbox._wake

        def grant(room: asyncio.Future[None]) -> None:
            real(room)
            if room in leaving:
                leaving[room].cancel()  # before it could come

        monkeypatch.setattr(inbox, "_wake", grant)
        with engine.held():
            await asyncio.to_thread(fill, narrow, engine)
            late = [asyncio.create_task(narrow.acall(put(f"late{n}"))) for n in range(4)]
            await asyncio.to_thread(until, lambda: blocked(narrow) == 4)
            rooms = [room for _, room in inbox_of(narrow)._tasks]
            leaving.update(zip(rooms[:2], late[:2], strict=True))
        await asyncio.wait_for(asyncio.gather(*late[2:]), PATIENCE)
        await asyncio.gather(*late[:2], return_exceptions=True)
        assert [task.cancelled() for task in late[:2]] == [True, True]

    asyncio.run(main())
    assert not any(put(f"late{n}") in batch for batch in engine.batches for n in (0, 1))


def test_a_task_whose_loop_was_closed_takes_nobodys_place(
    narrow: Lane, engine: FlakyEngine
) -> None:
    loop = asyncio.new_event_loop()
    with engine.held():
        futures = fill(narrow, engine)
        tasks = [loop.create_task(narrow.acall(put(f"lost{n}"))) for n in range(3)]
        loop.run_until_complete(asyncio.sleep(0))
        assert blocked(narrow) == 3
        loop.close()
        late = spawn(asyncio.run, narrow.acall(put("late")))
        until(lambda: blocked(narrow) == 4)
    for future in [*futures, late]:
        future.result(PATIENCE)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_crowd_of_threads_and_tasks_gets_through_a_narrow_door(
    narrow: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    async def crowd(name: str) -> None:
        await asyncio.gather(*(narrow.acall(put(f"{name}{n}")) for n in range(300)))

    def thread(name: str) -> None:
        for number in range(50):
            narrow.call(put(f"{name}{number}"))

    futures = [spawn(asyncio.run, crowd(name)) for name in "ab"]
    futures += [spawn(thread, name) for name in "cdef"]
    for future in futures:
        future.result(PATIENCE)
    assert sizes(engine, clock.now()) == (0, 800, 0)


def test_closing_frees_who_waits_for_room(narrow: Lane, engine: FlakyEngine) -> None:
    async def main() -> None:
        with engine.held():
            futures = await asyncio.to_thread(fill, narrow, engine)
            task = asyncio.create_task(narrow.acall(put("task")))
            thread = spawn(narrow.call, put("thread"))
            await asyncio.to_thread(until, lambda: blocked(narrow) == 2)
            closing = spawn(narrow.close)
            with pytest.raises(Closed):
                await asyncio.wait_for(task, PATIENCE)
            assert isinstance(thread.exception(PATIENCE), Closed)
        closing.result(PATIENCE)
        for future in futures:  # what was handed in before is carried out
            future.result(PATIENCE)

    asyncio.run(main())


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
