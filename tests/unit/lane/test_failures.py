"""Whatever fails, also on the way of a reply, nobody is left waiting, and the lane goes on."""

import _thread
import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import msgspec
import pytest

from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities, Identities, Identity
from bide.lane.lane import Lane
from bide.model.commands import Ack, Cancel, Command, Count, Extend, Lease
from bide.model.errors import (
    AccessDenied,
    NotAStore,
    OutcomeUnknown,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from bide.model.replies import Claimed, Counts, Outcomes, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_waiting
from tests.start import START
from tests.unit.lane.commands import PATIENCE, claim, ids, put, sizes, spawn, waiting
from tests.unit.lane.test_batches import is_put_of, outcome, together


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
    real = lane._waiting.continues

    def continues(*args: Any, **options: Any) -> None:
        real(*args, **options)
        broken()

    monkeypatch.setattr(lane._waiting, "continues", continues)
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


class Recorded(MemoryEngine):
    """Remembers which identities it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.identities: list[Identity | None] = []

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        self.identities += identities or [None] * len(commands)
        return super().execute(commands, now, identities)


class Forgetful(FlakyEngine):
    """A store that does not remember answers."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, remembers=False)


@pytest.fixture
def forgetful() -> FlakyEngine:
    return Forgetful(MemoryEngine())


@pytest.fixture
def forgetful_lane(forgetful: FlakyEngine, clock: FakeClock) -> Iterator[Lane]:
    lane = Lane(lambda: forgetful, clock)
    yield lane
    lane.close()


def lost() -> OutcomeUnknown:
    return OutcomeUnknown("the connection was lost")


def done(reply: object) -> list[bool]:
    assert isinstance(reply, Outcomes)
    return [bool(one) for one in reply.outcomes]


def test_a_batch_whose_reply_was_lost_is_answered_as_if_it_had_come(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("old"))
    engine.fail(lost, when=is_put_of("a"), after=True)
    futures = together(lane, engine, put("a"), claim(), Cancel("q", ["a"]), put("b"))
    assert done(futures[0].result()) == [True]
    assert ids(futures[1].result()) == ["old"]
    assert done(futures[2].result()) == [True]
    assert done(futures[3].result()) == [True]
    assert sizes(engine, clock.now()) == (0, 3, 1)


def test_a_batch_that_was_lost_before_it_came_is_executed_by_its_repetition(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("old"))
    engine.fail(lost, when=is_put_of("a"))
    futures = together(lane, engine, put("a"), Cancel("q", ["old"]))
    assert [done(future.result()) for future in futures] == [[True], [True]]
    assert sizes(engine, clock.now()) == (0, 3, 0)


def test_a_lone_command_whose_reply_was_lost_is_answered_as_if_it_had_come(
    lane: Lane, engine: FlakyEngine
) -> None:
    engine.fail(lost, after=True)
    assert done(lane.call(put("a"))) == [True]
    engine.fail(lost, after=True)
    claimed = spawn(lane.call, claim()).result(PATIENCE)
    assert isinstance(claimed, Claimed)
    assert ids(claimed) == ["a"]
    engine.fail(lost, after=True)
    assert done(lane.call(Ack("q", [Lease("a", claimed.token)]))) == [True]
    assert [len(batch) for batch in engine.batches] == [1, 1, 1, 1, 1, 1]


def test_a_command_is_repeated_once_only(lane: Lane, engine: FlakyEngine) -> None:
    fault = engine.fail(lost, when=is_put_of("a"), times=None)
    (future,) = together(lane, engine, put("a"))
    assert outcome(future) is OutcomeUnknown
    assert fault.struck == 2


@pytest.mark.parametrize("error", [StoreUnavailable, StoreReadOnly, AccessDenied])
def test_a_repetition_that_fails_does_not_say_that_nothing_was_done(
    lane: Lane, engine: FlakyEngine, error: type[Exception]
) -> None:
    engine.fail(lost, when=is_put_of("alone"), after=True)
    engine.fail(error("not now"), when=is_put_of("alone"))
    with pytest.raises(OutcomeUnknown, match="not now") as unknown:
        spawn(lane.call, put("alone")).result(PATIENCE)
    assert isinstance(unknown.value.__cause__, error)

    engine.fail(lost, when=is_put_of("a"), after=True)
    engine.fail(error("not now"), when=is_put_of("a"), times=None)
    futures = together(lane, engine, put("a"), put("b"))
    assert outcome(futures[0]) is OutcomeUnknown


def test_a_read_that_fails_twice_says_why(lane: Lane, engine: FlakyEngine) -> None:
    engine.fail(lost)
    engine.fail(StoreUnavailable("the server has gone"))
    with pytest.raises(StoreUnavailable, match="gone") as error:
        lane.call(Count("q"))
    assert type(error.value) is StoreUnavailable


def test_a_store_that_remembers_nothing_is_asked_again_only_what_has_the_same_answer(
    forgetful_lane: Lane, forgetful: FlakyEngine
) -> None:
    forgetful.fail(lost, when=is_put_of("a"), after=True)
    futures = together(forgetful_lane, forgetful, put("a"), Cancel("q", ["a"]), Count("q"))
    assert [outcome(future) for future in futures[:2]] == [OutcomeUnknown, OutcomeUnknown]
    assert isinstance(futures[2].result(), Counts)

    forgetful_lane.call(put("b"))
    held = spawn(forgetful_lane.call, claim(9)).result(PATIENCE)
    assert isinstance(held, Claimed)
    forgetful.fail(lost, after=True)
    extend = Extend("q", [Lease("b", held.token)], lease=1_000)
    assert done(forgetful_lane.call(extend)) == [True]


def test_commands_are_numbered_by_batch_and_reads_are_not(clock: FakeClock) -> None:
    engine = Recorded()
    lane = Lane(lambda: FlakyEngine(engine), clock)
    lane.call(put("a"))
    lane.call(Count("q"))
    lane.call(put("b"))
    first, read, second = engine.identities
    assert read is None
    assert first is not None
    assert second is not None
    assert first.sender == second.sender
    assert first.number < second.number
    lane.close()


def test_the_identity_that_another_process_gave_is_passed_on(clock: FakeClock) -> None:
    engine = Recorded()
    engine.execute([put("first")], START, [Identity("client:1", 1, 0)])
    lane = Lane(lambda: engine, clock)
    repeated = Identity("client:1", 2, 0, repeated=True)
    assert done(lane.call(put("a"), identity=repeated)) == [True]
    assert done(lane.call(put("a"), identity=repeated)) == [True]
    assert engine.identities[1:] == [repeated, repeated]
    lane.close()
