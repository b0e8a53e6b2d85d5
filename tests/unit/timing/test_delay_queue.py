"""DelayQueue: who waits, who is woken, how it ends; it answers as a plain sorted list would."""

import gc
import queue as standard
import sys
import threading
import weakref
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bide.clock import Signal
from bide.testing.clock import FakeClock
from bide.timing import Delayed, DelayQueue, ShutDown
from tests.effort import effort
from tests.unit.timing.conftest import RecordingClock, Start


class Item:
    """Something a weak reference can watch."""


def test_the_head_comes_out_when_it_is_due_not_before(clock: RecordingClock) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("b", 2)
    queue.put("a", 1)
    clock.advance(0.999999)
    assert queue.poll() is None
    clock.advance(0.000001)
    assert [queue.take(), queue.poll("nothing")] == ["a", "nothing"]
    clock.advance(5)
    assert queue.take() == "b"


def test_of_the_same_moment_the_larger_priority_goes_first_then_the_first() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    for name, priority in [("low", -1), ("a", 0), ("high", 7), ("b", 0)]:
        queue.put(name, 3, priority=priority)
    queue.put("earlier", 2.999, priority=-100)
    clock.advance(3)
    assert queue.drain() == ["earlier", "high", "a", "b", "low"]


def test_the_same_moment_of_the_wall_clock_is_the_same_however_long_apart_it_was_said() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    moment = clock.now() / 1000 + 60
    queue.put("said first", at=moment)
    for step, priority in [(0.0000007, 1), (0.0009, 2), (0.0303, 3), (20.00051, 4)]:
        clock.advance(step)
        queue.put(f"priority {priority}", at=moment, priority=priority)
    clock.advance(60)
    assert queue.drain() == [*(f"priority {number}" for number in (4, 3, 2, 1)), "said first"]


def test_a_clock_that_stands_still_keeps_the_order_of_arrival() -> None:
    queue: DelayQueue[int] = DelayQueue(clock=FakeClock())
    for number in range(1_000):
        queue.put(number)
    assert [queue.take() for _ in range(1_000)] == list(range(1_000))


def test_a_delay_may_be_a_timedelta_and_a_moment_a_datetime_or_unix_seconds() -> None:
    clock = FakeClock(1_700_000_000_000)
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("timedelta", timedelta(minutes=3))
    queue.put("datetime", at=datetime.fromtimestamp(1_700_000_060, UTC))
    queue.put("unix", at=1_700_000_120)
    queue.put("past", at=1_600_000_000)
    queue.put("now")
    assert [handle.item for handle in queue] == ["past", "now", "datetime", "unix", "timedelta"]
    assert queue.drain() == ["past", "now"]
    clock.advance(60)
    assert queue.take() == "datetime"
    clock.advance(120)
    assert queue.drain() == ["unix", "timedelta"]


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_setting_the_wall_clock_moves_no_item(jump: int) -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("at", at=clock.now() / 1000 + 60)
    queue.put("delay", 60)
    clock.set_wall(clock.now() + jump)
    clock.advance(59.999)
    assert queue.drain() == []
    clock.advance(0.001)
    assert queue.drain() == ["at", "delay"]


def test_after_a_long_sleep_of_the_machine_everything_comes_at_once_in_order() -> None:
    clock = FakeClock()
    queue: DelayQueue[int] = DelayQueue(clock=clock)
    for number in range(500):
        queue.put(number, (number * 7919 % 500) * 3600.0)
    clock.advance(3e8)
    assert queue.drain() == sorted(range(500), key=lambda number: number * 7919 % 500)


def test_take_blocks_until_the_head_is_due(clock: RecordingClock, start: Start) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("tea", 180)
    taken: list[str] = []
    thread = start(lambda: taken.append(queue.take()))
    clock.wait_for_waiters()
    clock.advance(179)
    assert taken == []
    clock.advance(1)
    thread.join(60)
    assert taken == ["tea"]
    assert clock.waits == [pytest.approx(1_180)], "one exact wait, not one more"


def test_a_shutdown_between_two_steps_of_take_is_heard(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer may call it at any time, so it takes no lock."""
    queue: DelayQueue[str] = DelayQueue()
    check_end = queue._check_end

    def check_just_before_the_end() -> None:
        check_end()
        queue.shutdown()

    monkeypatch.setattr(queue, "_check_end", check_just_before_the_end)
    ends: list[type[Exception]] = []

    def take() -> None:
        try:
            queue.take()
        except ShutDown as error:
            ends.append(type(error))

    start(take).join(60)
    assert ends == [ShutDown]


def test_one_waiter_times_the_head_and_the_others_just_wait(
    clock: RecordingClock, start: Start
) -> None:
    queue: DelayQueue[int] = DelayQueue(clock=clock)
    queue.put(0, 10)
    taken: list[int] = []
    threads = [start(lambda: taken.append(queue.take())) for _ in range(5)]
    clock.wait_for_waiters(5)
    assert sorted(clock.waits, key=str) == [1_010.0, None, None, None, None]
    clock.advance(10)
    clock.wait_for_waiters(4)
    for number in range(1, 5):
        queue.put(number)
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == [0, 1, 2, 3, 4]


def test_a_new_head_wakes_the_leader_and_a_later_item_nobody(
    clock: RecordingClock, start: Start
) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("far", 100)
    taken: list[str] = []
    thread = start(lambda: taken.append(queue.take()))
    clock.wait_for_waiters()
    queue.put("farther", 200)
    queue.put("near", 5)
    clock.wait_for_waiters()
    clock.advance(5)
    thread.join(60)
    assert taken == ["near"]
    assert clock.waits in ([1_100.0, 1_005.0], [1_100.0])


def test_a_put_that_ends_after_the_leader_sleeps_again_hides_no_later_one(
    clock: RecordingClock, start: Start
) -> None:
    """Threads may change as soon as the leader was woken: it takes the item, and waits again."""

    class Slow(DelayQueue[str]):
        def _wake(self, *, everybody: bool = False) -> None:
            super()._wake(everybody=everybody)
            if threading.current_thread() is threading.main_thread() and not taken:
                clock.wait_for_wait(2)

    queue = Slow(clock=clock)
    taken: list[str] = []
    thread = start(lambda: taken.extend(queue.take() for _ in range(2)))
    clock.wait_for_wait(1)
    queue.put("first")
    queue.put("second")
    thread.join(60)
    assert taken == ["first", "second"]


def test_a_leader_that_gives_up_hands_over(clock: RecordingClock, start: Start) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("late", 10)
    answers: list[str] = []

    def impatient() -> None:
        with pytest.raises(standard.Empty, match="no item was due within 2"):
            queue.take(timeout=2)
        answers.append("gave up")

    leader = start(impatient)
    clock.wait_for_waiters(1)
    follower = start(lambda: answers.append(queue.take()))
    clock.wait_for_waiters(2)
    clock.advance(2)
    leader.join(60)
    clock.wait_for_waiters(1)
    clock.advance(8)
    follower.join(60)
    assert answers == ["gave up", "late"]


def test_a_leader_whose_wait_breaks_hands_over(start: Start) -> None:
    class Interrupted(Exception):
        pass

    class Breaking(RecordingClock):
        breaks = True

        def wait(self, signal: Signal, moment: float | None) -> bool:
            if self.breaks:
                self.breaks = False
                super().wait(signal, None)
                raise Interrupted
            return super().wait(signal, moment)

    clock = Breaking()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("far", 100)
    answers: list[str] = []

    def interrupted() -> None:
        with pytest.raises(Interrupted):
            queue.take()
        answers.append("interrupted")

    leader = start(interrupted)
    clock.wait_for_waiters(1)
    follower = start(lambda: answers.append(queue.take()))
    clock.wait_for_waiters(2)
    queue.put("near", 1)
    leader.join(60)
    clock.wait_for_waiters(1)
    clock.advance(1)
    follower.join(60)
    assert answers == ["interrupted", "near"]


def test_a_head_that_is_taken_back_leaves_the_next_one_timed(
    clock: RecordingClock, start: Start
) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    head = queue.put("head", 5)
    queue.put("next", 7)
    taken: list[str] = []
    thread = start(lambda: taken.append(queue.take()))
    clock.wait_for_waiters()
    assert queue.remove(head)
    clock.advance(5)
    clock.wait_for_waiters()
    clock.advance(2)
    thread.join(60)
    assert taken == ["next"]


def test_take_with_no_patience_answers_at_once(clock: RecordingClock) -> None:
    queue: DelayQueue[None] = DelayQueue(clock=clock)
    queue.put(None, 1)
    with pytest.raises(standard.Empty):
        queue.take(timeout=0)
    clock.advance(1)
    assert queue.take(timeout=0) is None
    assert clock.waits == []


def test_the_autojumping_clock_sleeps_for_one_thread() -> None:
    clock = FakeClock(autojump=True)
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("next year", 365 * 86_400)
    before = clock.now()
    assert queue.take() == "next year"
    assert clock.now() - before == 365 * 86_400_000


def test_peek_shows_the_head_due_or_not_and_leaves_it() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    assert queue.peek() is None
    far = queue.put("far", 3e8)
    assert queue.peek() is far
    near = queue.put("near", 66)
    assert queue.peek() is near
    assert (near.due, near.priority, near.pending) == (1_066.0, 0, True)
    assert repr(near) == "<Delayed 'near' due=1066.000 priority=0>"
    clock.advance(70)
    assert queue.peek() is near
    assert queue.take() == "near"
    assert not near.pending
    assert len(queue) == 1


def test_remove_answers_once_and_only_for_its_own() -> None:
    queue: DelayQueue[str] = DelayQueue(clock=FakeClock())
    other: DelayQueue[str] = DelayQueue(clock=FakeClock())
    handle = queue.put("x", 5)
    due = queue.put("due")
    with pytest.raises(ValueError, match="into another queue"):
        other.remove(handle)
    assert [queue.remove(handle), queue.remove(handle)] == [True, False]
    assert queue.take() == "due"
    assert queue.remove(due) is False
    with pytest.raises(TypeError, match="what put returned, not str"):
        queue.remove("x")  # type: ignore[arg-type]


def test_drain_takes_no_more_than_asked() -> None:
    queue: DelayQueue[int] = DelayQueue(clock=FakeClock())
    for number in range(5):
        queue.put(number)
    queue.put(9, 1)
    assert [queue.drain(2), queue.drain(0), queue.drain()] == [[0, 1], [], [2, 3, 4]]
    with pytest.raises(ValueError, match="limit is negative"):
        queue.drain(-1)


def test_after_shutdown_what_is_there_still_comes_out(clock: RecordingClock, start: Start) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("last", 10)
    answers: list[str] = []

    def taker() -> None:
        try:
            answers.append(queue.take())
        except ShutDown:
            answers.append("shut down")

    threads = [start(taker) for _ in range(3)]
    clock.wait_for_waiters(3)
    assert queue.shutdown() == []
    with pytest.raises(ShutDown, match="takes no more items"):
        queue.put("too late")
    clock.wait_for_waiters(3)
    clock.advance(10)
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == ["last", "shut down", "shut down"]
    with pytest.raises(ShutDown, match="nothing is left"):
        queue.take()
    assert queue.poll() is None
    queue.shutdown()


def test_an_immediate_shutdown_drops_and_tells_what(clock: RecordingClock, start: Start) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("b", 20)
    queue.put("a", 10)
    ended = threading.Event()

    def taker() -> None:
        with pytest.raises(ShutDown):
            queue.take()
        ended.set()

    start(taker)
    clock.wait_for_waiters()
    assert queue.shutdown(immediate=True) == ["a", "b"]
    assert ended.wait(60)
    assert len(queue) == 0


def test_removing_the_last_item_of_a_shut_queue_ends_the_waits(
    clock: RecordingClock, start: Start
) -> None:
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    handle = queue.put("last", 10)
    ended = threading.Event()

    def taker() -> None:
        with pytest.raises(ShutDown):
            queue.take()
        ended.set()

    start(taker)
    start(taker)
    clock.wait_for_waiters(2)
    queue.shutdown()
    assert queue.remove(handle)
    assert ended.wait(60)


def test_shut_down_is_the_standard_librarys_where_it_has_one() -> None:
    assert issubclass(ShutDown, RuntimeError)
    if sys.version_info >= (3, 13):
        assert issubclass(ShutDown, standard.ShutDown)


def test_a_removed_item_is_free_at_once() -> None:
    queue: DelayQueue[Item] = DelayQueue(clock=FakeClock())
    gc.disable()  # it must not need the collector
    try:
        for delay in (100.0, 0.0002):
            item = Item()
            watch = weakref.ref(item)
            handle: Delayed[Item] | None = queue.put(item, delay)
            del item
            assert handle is not None
            queue.remove(handle)
            del handle
            assert watch() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("delay", [100.0, 0.0])
def test_many_removed_items_leave_nothing_behind(delay: float) -> None:
    count = effort(50_000, 1_000_000)
    queue: DelayQueue[int] = DelayQueue(clock=FakeClock())
    handles = [queue.put(number, delay * (number % 1_000)) for number in range(count)]
    for handle in handles:
        queue.remove(handle)
    assert len(queue) == 0
    entries = queue._entries
    assert len(entries._heap) < 64
    assert entries.waiting == {}


DELAYS = st.sampled_from([0, 0.0, 1e-9, 0.0004, 0.001, 0.0011, 0.25, 0.3, 66, 5_000, 3e8])
STEPS = st.sampled_from([0.0, 1e-9, 0.0005, 0.001, 0.26, 1.0, 70.0, 20_000.0, 4e8])


class DelayQueueMachine(RuleBasedStateMachine):
    """A `DelayQueue` beside the sorted list that says what it must do."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.queue: DelayQueue[int] = DelayQueue(clock=self.clock)
        self.rows: list[tuple[int, int, int, Delayed[int]]] = []
        self.gone: list[Delayed[int]] = []
        self.puts = 0

    def now(self) -> int:
        return round(self.clock.monotonic() * 1e9)

    @rule(delay=DELAYS, priority=st.integers(-1, 2), copies=st.sampled_from([1, 1, 3, 40]))
    def put(self, delay: float, priority: int, copies: int) -> None:
        for _ in range(copies):
            handle = self.queue.put(self.puts, delay, priority=priority)
            due = round((self.clock.monotonic() + delay) * 1e9)
            self.rows.append((due, -priority, self.puts, handle))
            self.puts += 1
        self.rows.sort(key=lambda row: row[:3])

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        assert self.queue.remove(row[3]) is True
        self.gone.append(row[3])

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def remove_again(self, data: st.DataObject) -> None:
        assert self.queue.remove(data.draw(st.sampled_from(self.gone))) is False

    @rule(seconds=STEPS)
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def poll(self) -> None:
        due = self.rows and self.rows[0][0] <= self.now()
        if due:
            row = self.rows.pop(0)
            assert self.queue.poll() == row[2]
            self.gone.append(row[3])
        else:
            assert self.queue.poll("none") == "none"

    @rule(limit=st.sampled_from([None, 0, 1, 5]))
    def drain(self, limit: int | None) -> None:
        due = [row for row in self.rows if row[0] <= self.now()][:limit]
        assert self.queue.drain(limit) == [row[2] for row in due]
        del self.rows[: len(due)]
        self.gone.extend(row[3] for row in due)

    @rule()
    def peek(self) -> None:
        assert self.queue.peek() is (self.rows[0][3] if self.rows else None)

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == len(self.rows)

    def teardown(self) -> None:
        assert [handle.item for handle in self.queue] == [row[2] for row in self.rows]
        assert all(handle.pending for handle in self.queue)
        assert not any(handle.pending for handle in self.gone)


TestDelayQueueMachine = DelayQueueMachine.TestCase
TestDelayQueueMachine.settings = settings(
    max_examples=effort(40, 150), stateful_step_count=40, deadline=None, database=None
)
