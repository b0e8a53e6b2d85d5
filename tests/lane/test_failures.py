"""Whatever fails in the lane's own thread, nobody is left waiting, and the lane goes on."""

import _thread
import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from bide.lane.lane import Lane
from bide.model.errors import NotAStore, StoreError
from bide.model.replies import Outcomes
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_waiting
from tests.lane.commands import PATIENCE, claim, ids, put, spawn, waiting


def broken(*args: object, **options: object) -> NoReturn:
    raise RuntimeError("a bug")


async def three(lane: Lane) -> list[object]:
    tasks = [
        asyncio.create_task(lane.acall(put("a"))),
        asyncio.create_task(lane.acall(claim(), wait=60)),
        asyncio.create_task(lane.acall(put("b"))),
    ]
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)


@pytest.mark.parametrize("part", ["_keep_waiting", "hint"])
def test_a_bug_after_the_commit_keeps_no_reply_back(
    lane: Lane, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, part, broken)
    first, claimed, second = asyncio.run(three(lane))
    assert isinstance(first, Outcomes)
    assert isinstance(second, Outcomes)
    assert ids(claimed) == ["a"]  # type: ignore[arg-type]
    monkeypatch.undo()
    assert ids(asyncio.run(lane.acall(claim(), wait=60))) == ["b"]


def test_a_bug_before_the_commit_is_told_to_every_caller(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "execute", broken)
    for error in asyncio.run(three(lane)):
        assert isinstance(error, StoreError)
        assert isinstance(error.__cause__, RuntimeError)
    monkeypatch.undo()
    assert isinstance(lane.call(put("a")), Outcomes)
    assert count_waiting(lane) == 0
    assert ids(spawn(lane.call, claim(), wait=60).result(PATIENCE)) == ["a"]


def test_a_bug_in_parking_forgets_no_claim(
    lane: Lane, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = spawn(lane.call, claim(), wait=60)
    waiting(lane)
    real = lane._waiting.has_asked

    def has_asked(*args: Any, **options: Any) -> None:
        real(*args, **options)
        broken()

    monkeypatch.setattr(lane._waiting, "has_asked", has_asked)
    late = spawn(lane.call, claim(), wait=60)
    assert isinstance(late.exception(PATIENCE), StoreError)
    monkeypatch.undo()
    waiting(lane, 1)
    lane.call(put("a"))
    assert ids(waiter.result(PATIENCE)) == ["a"]


@pytest.mark.parametrize("call", ["thread", "task"])
def test_a_store_that_cannot_be_opened_says_so_to_everybody_and_can_be_mended(
    engine: FlakyEngine, clock: FakeClock, call: str
) -> None:
    good = False

    def open_engine() -> FlakyEngine:
        if not good:
            raise NotAStore("this is a holiday photo")
        return engine

    lane = Lane(open_engine, clock)
    ask: Callable[..., object] = (
        (lambda: lane.call(claim(), wait=60))
        if call == "thread"
        else (lambda: asyncio.run(lane.acall(claim(), wait=60)))
    )
    with pytest.raises(NotAStore, match="holiday photo"):
        spawn(ask).result(PATIENCE)
    good = True
    lane.call(put("a"))
    assert ids(spawn(ask).result(PATIENCE)) == ["a"]  # type: ignore[arg-type]
    lane.close()


def test_a_thread_that_cannot_be_started_leaves_nobody_in_the_inbox(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(lane.acall(claim(), wait=60))
    monkeypatch.undo()
    lane.call(put("a"))
    assert ids(asyncio.run(lane.acall(claim(), wait=60))) == ["a"]


def test_an_error_that_cannot_be_raised_on_a_loop_hurts_no_neighbour(
    lane: Lane, engine: FlakyEngine
) -> None:
    engine.fail(StopIteration, times=None, when=lambda command: command == put("a"))
    first, _, second = asyncio.run(three(lane))
    assert isinstance(first, StoreError)
    assert isinstance(second, Outcomes)
