"""The methods that `DelayQueue` and `AsyncDelayQueue` share: those that do not wait."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from bide.clock import SYSTEM_CLOCK, Clock
from bide.timing.delay_heap import NEVER, Delayed, DelayHeap, check_priority
from bide.timing.errors import ShutDown
from bide.timing.lifetime import OwnedByProcess
from bide.timing.times import NS, Delay, Moment, WallClock, length_seconds, seconds_of

T = TypeVar("T")
D = TypeVar("D")


class DelayQueueBase(OwnedByProcess, Generic[T]):
    """Items in the order of their due times; a subclass adds `take`, which waits."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._wall = WallClock(clock)
        self._reached = 0  # the latest time that the clock has announced, in ns
        self._entries: DelayHeap[T] = DelayHeap()
        self._alarm = -NEVER  # an item due before this calls `_new_head`
        self._closed = False

    def put(
        self,
        item: T,
        delay: Delay | None = None,
        *,
        at: Moment | None = None,
        priority: int = 0,
    ) -> Delayed[T]:
        """Put an item in, to come out when it is due. Never blocks: the queue has no bound.

        Args:
            item: anything, also `None`.
            delay: seconds or a `timedelta` from now; with neither `delay` nor `at` it is due now.
            at: an aware `datetime` or Unix seconds. A time in the past is due at once, before items
                with a later due time.
            priority: an integer of less than 2**31 either way; the larger goes first among items
                due at the same time.

        Returns:
            A handle for `remove`.

        Raises:
            ValueError: the delay is negative or NaN, the datetime has no time zone, or the priority
                is out of range.
            TypeError: both `delay` and `at`, or one of them or `priority` is of the wrong type.
            ShutDown: after `shutdown`.
        """
        if at is not None:
            due = self._wall.due(at, delay)
        else:
            seconds = seconds_of(delay)
            due = int((self._clock.monotonic() + seconds) * NS + 0.5)
        if priority or priority.__class__ is not int:
            check_priority(priority)
        return self._put_due(item, due, priority)

    def poll(self, default: D | None = None) -> T | D | None:
        """Take out and return the head if it is due now, else return `default`."""
        with self._lock:
            self._check_process()
            entry = self._entries.pop(self._now())
            self._leave()
        return default if entry is None else entry.item

    def peek(self) -> Delayed[T] | None:
        """Return the handle of the head, due or not, and leave it there; `None` when empty."""
        with self._lock:
            self._check_process()
            return self._entries.head()

    def remove(self, handle: Delayed[T]) -> bool:
        """Take an item back before it is taken.

        Returns:
            True: it will not come out. False: it was taken or removed before.

        Raises:
            ValueError: the handle is another queue's.
            TypeError: it is not a handle.
        """
        if handle.__class__ is not Delayed:
            raise TypeError(f"remove takes what put returned, not {type(handle).__name__}")
        with self._lock:
            if self._forked:
                self._check_process()
            removed = self._entries.remove(handle)
            if self._closed:
                self._leave()
        return removed

    def drain(self, limit: int | None = None) -> list[T]:
        """Take out everything that is due now, at most `limit` items, and return it in order.

        Raises:
            ValueError: `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit is negative ({limit}); None takes all that is due")
        items: list[T] = []
        with self._lock:
            self._check_process()
            now = self._now()
            while limit is None or len(items) < limit:
                entry = self._entries.pop(now)
                if entry is None:
                    break
                items.append(entry.item)
            self._leave()
        return items

    def shutdown(self, immediate: bool = False) -> list[T]:
        """Refuse further items, and end the waits: as `queue.Queue.shutdown` of Python 3.13.

        What is in the queue still comes out when it is due; then `take` raises `ShutDown`. Calling
        it again is allowed.

        Args:
            immediate: drop what is in the queue, so that every `take` raises at once.

        Returns:
            The items that were dropped, by due time.
        """
        with self._lock:
            self._check_process()
            self._closed = True
            dropped = [entry.item for entry in self._entries.clear()] if immediate else []
            self._leave()
        return dropped

    def __len__(self) -> int:
        """Count the items, due or not."""
        with self._lock:
            self._check_process()
            return len(self._entries)

    def __iter__(self) -> Iterator[Delayed[T]]:
        """Iterate over the handles by due time: a snapshot, which costs O(n log n)."""
        with self._lock:
            self._check_process()
            return iter(self._entries.in_order())

    def _now(self) -> int:
        return max(int(self._clock.monotonic() * NS + 0.5), self._reached)

    def _limit(self, timeout: Delay | None) -> int:
        """Return when a wait ends, in nanoseconds of the monotonic clock."""
        if timeout is None:
            return NEVER
        return self._now() + round(length_seconds(timeout, "timeout") * NS)

    def _put_due(self, item: T, due: int, priority: int = 0) -> Delayed[T]:
        """Put an item in by its due time in nanoseconds of the monotonic clock."""
        with self._lock:
            if self._closed or self._forked:
                self._check_process()
                raise ShutDown("the delay queue was shut down: it takes no more items")
            entry = self._entries.add(item, due, priority)
            if due < self._alarm:
                self._new_head()
        return entry

    def _check_end(self) -> None:
        if self._closed and not len(self._entries):
            raise ShutDown("the delay queue was shut down, and nothing is left in it")

    def _new_head(self) -> None:
        """Wake what sleeps until a later head."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Ensure, before a method returns, that something waits for the next head."""
        raise NotImplementedError
