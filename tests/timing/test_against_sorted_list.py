"""Whatever is put, removed and taken: the delay queue answers as a plain sorted list would."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bide.testing.clock import FakeClock
from bide.timing import Delayed, DelayQueue
from tests.effort import effort

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
