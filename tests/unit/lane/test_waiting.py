"""A claim that waits is parked: it occupies nobody, and asks when and in which turn it is due."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.lane import waiting_claims
from bide.lane.inbox import FOREVER, LaneRequest
from bide.lane.lane import Lane
from bide.lane.waiting_claims import LOOK_AGAIN, WaitingClaims
from bide.model.commands import Lease, RetryCommand
from bide.model.errors import StoreBusy
from bide.model.replies import Claimed, Reply
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from bide.testing.hooks import count_waiting
from tests.start import START
from tests.unit.lane.commands import PATIENCE, claim, claims, ids, pause, put, sizes, spawn, waiting
from tests.waiting import until


def crowd(lane: Lane, count: int, wait: float = 600.0) -> "list[Future[Reply]]":
    """Park so many claims, one after the other."""
    futures = []
    for number in range(1, count + 1):
        futures.append(spawn(lane.call, claim(), wait=wait))
        waiting(lane, number)
    return futures


def pass_time(clock: FakeClock, seconds: float) -> None:
    """Let time pass once the lane sleeps, and look again when it sleeps again."""
    clock.wait_for_waiters()
    clock.advance(seconds)
    clock.wait_for_waiters()


def test_two_hundred_waiting_claims_stand_in_nobodys_way(lane: Lane, engine: FlakyEngine) -> None:
    threads = threading.active_count()

    async def main() -> None:
        tasks = [asyncio.create_task(lane.acall(claim(), wait=600)) for _ in range(200)]
        await asyncio.to_thread(waiting, lane, 200)
        before = len(engine.batches)
        await asyncio.wait_for(lane.acall(put("far", delay=300_000)), PATIENCE)
        assert len(engine.batches) == before + 1
        assert threading.active_count() <= threads + 2  # the lane, and to_thread's
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    until(lambda: count_waiting(lane) == 0)  # the lane's thread forgets them one by one


def test_all_who_wait_share_one_timer(lane: Lane, clock: FakeClock) -> None:
    futures = crowd(lane, 20)
    clock.wait_for_waiters()
    assert clock.waiting() == 1
    lane.close()
    for future in futures:
        assert future.exception(PATIENCE)


def test_at_the_due_moment_one_asks_and_the_next_only_after_it_got_something(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("a", delay=500))
    futures = crowd(lane, 10)
    before = claims(engine)
    clock.wait_for_waiters()
    clock.advance(0.5)
    until(lambda: any(future.done() for future in futures))
    waiting(lane, 9)
    until(lambda: claims(engine) == before + 2)  # the leader, and one who found no more
    clock.wait_for_waiters()
    assert claims(engine) == before + 2


def test_who_has_waited_longest_gets_the_first_message(lane: Lane, clock: FakeClock) -> None:
    futures = crowd(lane, 3)
    for number, future in enumerate(futures):
        lane.call(put(f"m{number}"))
        assert ids(future.result(PATIENCE)) == [f"m{number}"]


def test_messages_due_together_go_to_all_who_wait(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("a", "b", "c", delay=500))
    futures = crowd(lane, 3)
    clock.wait_for_waiters()
    clock.advance(0.5)
    assert sorted(ids(future.result(PATIENCE))[0] for future in futures) == ["a", "b", "c"]


def test_nobody_is_woken_a_moment_too_early(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("a", delay=900))
    (future,) = crowd(lane, 1)
    before = claims(engine)
    pass_time(clock, 0.899)
    assert claims(engine) == before
    clock.advance(0.001)
    assert ids(future.result(PATIENCE)) == ["a"]
    assert claims(engine) == before + 1


def test_a_new_head_wakes_the_leader(lane: Lane, clock: FakeClock) -> None:
    lane.call(put("far", delay=900))
    (future,) = crowd(lane, 1)
    lane.call(put("near", delay=100))
    clock.wait_for_waiters()
    clock.advance(0.1)
    assert ids(future.result(PATIENCE)) == ["near"]


def test_what_goes_behind_the_head_wakes_nobody(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("near", delay=500))
    crowd(lane, 1)
    clock.wait_for_waiters()
    before = clock._waits.copy()
    lane.call(put("far", delay=900))
    assert clock._waits == before  # the lane sleeps the same sleep


def test_a_message_given_back_wakes_who_waits(lane: Lane) -> None:
    lane.call(put("a"))
    held = spawn(lane.call, claim()).result(PATIENCE)
    assert isinstance(held, Claimed)
    (future,) = crowd(lane, 1)
    lane.call(RetryCommand("q", [Lease("a", held.token)], release=True))
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_lease_that_lapses_wakes_who_waits(lane: Lane, clock: FakeClock) -> None:
    lane.call(put("a"))
    spawn(lane.call, claim(lease=700)).result(PATIENCE)
    (future,) = crowd(lane, 1)
    clock.wait_for_waiters()
    clock.advance(0.7)
    assert ids(future.result(PATIENCE)) == ["a"]


def test_queues_are_waited_for_apart(lane: Lane, engine: FlakyEngine) -> None:
    (future,) = crowd(lane, 1)
    before = claims(engine)
    lane.call(put("b", queue="other"))
    assert not future.done()
    assert claims(engine) == before
    assert ids(spawn(lane.call, claim(queue="other"), wait=60).result(PATIENCE)) == ["b"]


def test_a_claim_gives_up_exactly_at_its_deadline(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    (future,) = crowd(lane, 1, wait=2.5)
    for _ in range(2):
        pass_time(clock, 1.0)
    pass_time(clock, 0.499)
    assert not future.done()
    clock.advance(0.001)
    reply = future.result(PATIENCE)
    assert ids(reply) == []
    assert reply.now == START + 2_500  # type: ignore[union-attr]


def test_each_claim_has_a_deadline_of_its_own(lane: Lane, clock: FakeClock) -> None:
    first, second = crowd(lane, 1, wait=0.75)[0], spawn(lane.call, claim(), wait=0.25)
    waiting(lane, 2)
    clock.wait_for_waiters()
    clock.advance(0.25)
    assert ids(second.result(PATIENCE)) == []
    assert not first.done()
    clock.wait_for_waiters()
    clock.advance(0.5)
    assert ids(first.result(PATIENCE)) == []


def test_what_falls_due_in_the_moment_of_the_deadline_is_in_time(
    lane: Lane, clock: FakeClock
) -> None:
    lane.call(put("a", delay=500))
    (future,) = crowd(lane, 1, wait=0.5)
    clock.wait_for_waiters()
    clock.advance(0.5)
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_claim_that_does_not_wait_is_never_parked(lane: Lane, engine: FlakyEngine) -> None:
    assert ids(lane.call(claim(), wait=0)) == []
    assert ids(lane.call(claim())) == []
    assert count_waiting(lane) == 0


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_whoever_waits_finds_out_within_a_second_that_the_wall_clock_was_set(
    lane: Lane, clock: FakeClock, jump: int
) -> None:
    lane.call(put("a", delay=86_400_000))
    (future,) = crowd(lane, 1)
    clock.set_wall(START + jump)
    if jump > 0:
        clock.wait_for_waiters()
        clock.advance(LOOK_AGAIN)
        assert ids(future.result(PATIENCE)) == ["a"]
        return
    lane.call(put("b", delay=100))  # its moment, by the new wall, is near all the same
    clock.wait_for_waiters()
    clock.advance(0.1)
    assert ids(future.result(PATIENCE)) == ["b"]


def test_a_wall_clock_set_back_wakes_nobody_for_a_message_that_is_not_due(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("a", delay=800))
    (future,) = crowd(lane, 1)
    clock.set_wall(START - 5_000)
    pass_time(clock, 0.8)
    until(lambda: count_waiting(lane) == 1)
    assert not future.done()
    assert sizes(engine, clock.now()) == (1, 0, 0)


def test_a_paused_queue_keeps_them_waiting_until_it_resumes(
    lane: Lane, engine: FlakyEngine
) -> None:
    lane.call(pause(True))
    lane.call(put("a"))
    (future,) = crowd(lane, 1)
    lane.call(put("b"))
    waiting(lane)
    assert not future.done()
    lane.call(pause(False))
    assert ids(future.result(PATIENCE)) == ["a"]


def test_a_leader_whose_question_failed_leaves_the_others_waiting(
    lane: Lane, engine: FlakyEngine, clock: FakeClock
) -> None:
    lane.call(put("a", delay=500))
    first, second = crowd(lane, 2)
    engine.fail(StoreBusy("locked"))
    clock.wait_for_waiters()
    clock.advance(0.5)
    assert isinstance(first.exception(PATIENCE), StoreBusy)
    assert ids(second.result(PATIENCE)) == ["a"]


def test_thousands_of_settled_claims_leave_no_deadlines_behind(
    lane: Lane, engine: FlakyEngine
) -> None:
    crowd(lane, 1, wait=100)

    async def main() -> None:
        for _ in range(20):
            tasks = [asyncio.create_task(lane.acall(claim(), wait=600)) for _ in range(100)]
            await asyncio.to_thread(waiting, lane, 101)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    waiting(lane, 1)
    assert len(lane._waiting._deadlines) < 200


def test_nobody_wakes_for_the_deadline_of_a_claim_that_was_settled(
    lane: Lane, clock: FakeClock
) -> None:
    (future,) = crowd(lane, 1, wait=5)
    lane.call(put("a"))
    assert ids(future.result(PATIENCE)) == ["a"]
    until(lambda: [wait.end for wait in clock._waits.values()] == [None])


def request(queue: str) -> LaneRequest:
    return LaneRequest(claim(queue=queue), deadline=1e9)


def wait(claims: WaitingClaims, one: LaneRequest, now: float, next_ms: int | None = None) -> None:
    """Give a claim, which has asked at `now`, an empty reply."""
    one.reply = Claimed([], 0, 0, next=next_ms)
    claims.continues(one, now, closed=False)


def test_a_hint_costs_the_same_however_many_queues_have_waiting_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = WaitingClaims()
    for number in range(2_000):
        claims.enter(one := request(f"q{number}"))
        wait(claims, one, now=0.0)
    moment: Callable[[Any], float | None] = waiting_claims._Waiting.moment
    looked_at = Mock(side_effect=moment)
    monkeypatch.setattr(waiting_claims._Waiting, "moment", lambda self: looked_at(self))

    claims.hint("q1999", 0.5)
    assert [one.command.queue for one in claims.due(0.5)] == ["q1999"]
    assert claims.next_moment() == LOOK_AGAIN
    assert looked_at.call_count < 20


Steps = st.lists(
    st.tuples(
        st.sampled_from(("enter", "reply", "end", "hint", "withdraw")),
        st.integers(0, 3),  # the queue
        st.integers(0, 20),  # which of its claims; or after how many tenths of a second
        st.none() | st.integers(0, 2_000),  # ms to the next message
        st.integers(0, 7),  # tenths of a second that pass before the step
    ),
    max_size=40,
)


@given(Steps)
def test_the_claims_that_are_due_are_those_whose_moment_has_come(steps: Any) -> None:
    claims, now = WaitingClaims(), 0.0
    asking: list[LaneRequest] = []
    for what, number, which, next_ms, tenths in steps:
        now += tenths / 10
        queue = f"q{number}"
        mine = [one for one in asking if one.command.queue == queue]
        parked = list(claims.queues[queue].requests) if queue in claims.queues else []
        if what == "enter":
            claims.enter(one := request(queue))
            asking.append(one)
        elif what in ("reply", "end") and mine:
            asking.remove(one := mine[which % len(mine)])
            if what == "end":
                claims.leave(one, now, asked=True)
            else:
                wait(claims, one, now, next_ms)
        elif what == "hint":
            claims.hint(queue, now + which / 10)
        elif what == "withdraw" and parked:
            claims.withdraw(parked[which % len(parked)], now)

        moments = {name: waiting.moment() for name, waiting in claims.queues.items()}
        known = [moment for moment in moments.values() if moment < FOREVER]
        deadlines = [1e9] if claims.queues else []
        assert claims.next_moment() == min(known + deadlines, default=None)
        if tenths % 2:
            due = claims.due(now)
            asking += due
            expected = {name for name, at in moments.items() if at <= now}
            assert sorted(one.command.queue for one in due) == sorted(expected)
