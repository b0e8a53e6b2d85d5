"""Millions of timers on one thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from bide.clock import SYSTEM_CLOCK, Clock, Signal
from bide.logs import logger as bide_logger
from bide.threads import Background
from bide.timing.hierarchy import NEVER, Entry, Hierarchy, Slot
from bide.timing.lifetime import NS, Delay, DueTimes, Moment, OwnedByProcess, ShutDown, period_ns

logger = bide_logger("bide.timing")
PART_NS = 1_000_000
"""Moving one part of a crowded slot takes less than so many nanoseconds."""

GONE = object()
"""What `pop` returns for a timer that is not in the slot any more."""

LATE: "Slot[Any]" = Slot(NEVER)
"""The slot of timers that are in none yet: see `TimingWheel._late`."""


class TimerHandle(Entry):
    """One timer of a `TimingWheel`.

    Attributes:
        fn: what is called.
        args: what it is called with.
    """

    __slots__ = ("_wheel", "args", "fn")

    fn: Callable[..., object]
    args: tuple[object, ...]
    _wheel: "TimingWheel"

    @property
    def due(self) -> float:
        """When it is due, in seconds of the wheel's `Clock.monotonic()`: the end of its tick."""
        return self._wheel._seconds_of(self._due)

    @property
    def pending(self) -> bool:
        """Whether it has neither started nor been cancelled."""
        return self._slot is not None

    def cancel(self) -> bool:
        """Cancel the timer: short for `TimingWheel.cancel`."""
        return self._wheel.cancel(self)

    def __repr__(self) -> str:
        return f"<TimerHandle {self.fn!r} due={self.due:.3f}>"


class TimingWheel(OwnedByProcess):
    """Calls functions when they are due; scheduling and cancelling cost O(1).

    A hierarchical timing wheel (Varghese and Lauck, 1987) with one thread, which sleeps until the
    next timer is due, however far off that is: it does not tick over empty slots. Made for very
    many timers, most of which are cancelled, such as timeouts; compare Netty's `HashedWheelTimer`.

    A timer starts at the first tick that is not before its due time: never early, and up to one
    tick late. Timers of one tick start in the order in which they were scheduled. What a callback
    raises is logged (logger `bide.timing`) and affects no other timer.

    Due times are kept on the monotonic clock: setting the wall clock moves no timer. A timer
    scheduled with `at=` keeps the distance that it had when it was scheduled. After the machine or
    the process was suspended, all timers that are due start at once, in order.

    Args:
        tick: the precision, in seconds or a `timedelta`; at least a microsecond.
        executor: runs the callbacks. `None` runs them on the wheel's own thread: fastest, but then
            they must be short, for they delay each other. The caller shuts the executor down.
        clock: tells the time and waits; tests pass `bide.testing.FakeClock`.

    Raises:
        ValueError: `tick` is too short.

    Example:
        >>> wheel = TimingWheel()
        >>> timeout = wheel.schedule(print, 30, args=("too late",))
        >>> wheel.cancel(timeout)
        True
        >>> wheel.stop()
        []
    """

    def __init__(
        self, tick: Delay = 0.001, *, executor: Executor | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._tick_ns = period_ns(tick, "tick")
        if self._tick_ns < 1_000:
            raise ValueError(f"tick is {tick!r}; a wheel cannot be finer than a microsecond")
        super().__init__()
        self._signal = Signal()
        """Wakes the thread."""
        self._worker = Background("bide-timing-wheel", self._run)
        self._late: deque[tuple[TimerHandle, Slot[TimerHandle] | None]] = deque()
        """What finalizers and signal handlers have scheduled (with `None`), and cancelled, in a
        thread that was changing the timers; it does that before it lets go of the lock."""
        self._executor = executor
        self._clock = clock
        self._due_times = DueTimes(clock)
        self._reached = self._now()
        """The tick that the clock last said had come: it never goes back."""
        part_ticks = max(1, PART_NS // self._tick_ns)
        self._timers: Hierarchy[TimerHandle] = Hierarchy(self._reached, part_ticks)
        self._firing: Slot[TimerHandle] = Slot(NEVER)
        """What is due now and has not started."""
        self._alarm = -NEVER
        """The tick that the thread sleeps until; `-NEVER`: it does not sleep."""
        self._open = False
        """Whether the thread runs and takes timers."""
        self._stopping = False
        """Whether `stop` was called."""
        self._drops = False
        """Whether the thread is to drop what is pending, for a `stop` that could not."""

    def schedule(
        self,
        fn: Callable[..., object],
        delay: Delay | None = None,
        *,
        at: Moment | None = None,
        args: tuple[Any, ...] = (),
    ) -> TimerHandle:
        """Call `fn(*args)` when it is due.

        Args:
            fn: any callable; its result is dropped.
            delay: seconds or a `timedelta` from now; with neither `delay` nor `at` the next tick.
            at: an aware `datetime` or Unix seconds; a time in the past means the next tick.
            args: positional arguments (for keywords, `functools.partial`).

        Returns:
            A handle for `cancel`.

        Raises:
            TypeError: `fn` cannot be called; both `delay` and `at`; or a wrong type.
            ValueError: the delay is negative or NaN, or the datetime has no time zone.
            ShutDown: after `stop`.
        """
        due = self._due_times.of(delay, at)
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {type(fn).__name__}")
        timer = TimerHandle()  # and no `__init__`: calling it would cost as much again
        timer._wheel = self
        timer.fn = fn
        timer.args = args
        timer._due = -(-due // self._tick_ns)  # rounded up: never early
        timer._slot = LATE
        if not self._open:
            self._start()
        if self._interrupts_change():
            self._late.append((timer, None))
            self._signal.set()
            return timer
        with self._lock:
            self._place(timer)
            self._catch_up()
        return timer

    def cancel(self, handle: TimerHandle) -> bool:
        """Cancel a timer. No other timer is touched, and its memory is free at once.

        Returns:
            True: it will not be called. False: it has started, or was cancelled before.

        Raises:
            ValueError: the handle is another wheel's.
            TypeError: it is not a handle.
        """
        if handle.__class__ is not TimerHandle:
            raise TypeError(f"cancel takes what schedule returned, not {type(handle).__name__}")
        if handle._wheel is not self:
            raise ValueError(f"{handle!r} is a timer of another wheel; cancel it there")
        if self._interrupts_change():
            if (slot := handle._slot) is None:
                return False
            handle._slot = None
            self._late.append((handle, slot))  # `_catch_up` removes it before the lock is let go
            self._signal.set()
            return True
        with self._lock:
            self._catch_up()
            if (slot := handle._slot) is None:
                return False
            handle._slot = None
            if slot is self._firing:
                # One step, as in `_fire`, which takes no lock: one of both gets the timer.
                return slot.pop(handle, GONE) is not GONE
            slot.remove(handle)
            self._catch_up()  # with what came in between meanwhile
        return True

    @property
    def pending(self) -> int:
        """The number of timers that have neither started nor been cancelled."""
        with self._lock:
            return len(self._timers) + len(self._firing)

    def stop(self, drain: bool = False) -> list[TimerHandle]:
        """Refuse further timers and end the thread. Calling it again is allowed.

        Returns when the thread has ended, so after a callback that runs on it; a call from a
        callback on that thread returns at once. Callbacks on an executor are not waited for.

        Args:
            drain: True waits until every pending timer was called when it was due, however far off
                that is; False drops them.

        Returns:
            The dropped timers by due time; `fn` and `args` of each say what was not called.
        """
        self._stopping = True
        self._open = False
        if self._interrupts_change():  # a finalizer: the thread drops what is pending
            self._drops = not drain
            self._signal.set()
            return []
        with self._lock:
            self._catch_up()
            dropped = [] if drain else self._drop()
            self._alarm = -NEVER
            self._signal.set()
        self._worker.join()
        return dropped

    def __enter__(self) -> "TimingWheel":
        return self

    def __exit__(self, *error: object) -> None:
        """Stop at once and drop what is pending; to wait for it call `stop(drain=True)` before."""
        self.stop()

    def _seconds_of(self, tick: int) -> float:
        """Return a tick as seconds of the monotonic clock."""
        return tick * self._tick_ns / NS

    def _now(self) -> int:
        """Return the tick that has come, by the monotonic clock."""
        return int(self._clock.monotonic() * NS + 0.5) // self._tick_ns

    def _start(self) -> None:
        """Start the thread.

        Raises:
            ShutDown: after `stop`.
        """
        if self._stopping:
            raise ShutDown("the timing wheel was stopped: it takes no more timers")
        self._check_process()
        self._worker.ensure()
        self._open = True

    def _interrupts_change(self) -> bool:
        """Return whether this is a finalizer or signal handler within a change of this thread.

        It must not change the timers: what it wants is noted in `_late`.
        """
        self._check_process()
        return self._lock._is_owned()  # type: ignore[no-any-return]

    def _place(self, timer: TimerHandle) -> None:
        """Put a timer into its slot."""
        current = self._timers.current
        timer._due = tick = max(timer._due, current + 1)
        self._timers.place(timer, current)
        if tick < self._alarm:
            self._alarm = -NEVER
            self._signal.set()

    def _catch_up(self) -> None:
        """Do what is noted in `_late`."""
        while self._late:
            timer, slot = self._late.popleft()
            if slot is None:
                if timer._slot is LATE:
                    self._place(timer)
                continue
            slot = timer._slot or slot  # it may have been moved since it was noted
            timer._slot = None
            if timer in slot:
                slot.remove(timer)

    def _drop(self) -> list[TimerHandle]:
        """Drop what is pending; return it by due time."""
        firing = self._firing
        dropped = [timer for timer in list(firing) if firing.pop(timer, GONE) is not GONE]
        dropped += self._timers.in_order()
        self._timers = Hierarchy(0)
        for timer in dropped:
            timer._slot = None
        return dropped

    def _run(self) -> None:
        while (slot := self._next_slot()) is not None:
            self._fire(slot)

    def _next_slot(self) -> Slot[TimerHandle] | None:
        """Wait until timers are due and return those of the first tick; `None` at the end."""
        while True:
            with self._lock:
                self._catch_up()
                if self._drops:
                    self._drop()
                slot = self._timers.pull(self._reached)
                if slot is None:
                    self._reached = now = max(self._now(), self._reached)
                    slot = self._timers.pull(now)
                if slot is not None:
                    self._firing = slot
                    self._catch_up()  # what a finalizer has cancelled meanwhile must not start
                    return slot
                if self._stopping and not len(self._timers):
                    return None
                begin, crowded = self._timers.crowd()
                if crowded is not None and begin <= now:
                    self._timers.spread(crowded)
                    continue  # lets go of the lock in between
                self._alarm = self._timers.earliest()
                wake_tick = min(self._alarm, begin)
                until = None if wake_tick >= NEVER else self._seconds_of(wake_tick)
            if not self._clock.wait(self._signal, until):
                self._reached = wake_tick  # a float may say a bit less
            self._alarm = -NEVER

    def _fire(self, slot: Slot[TimerHandle]) -> None:
        """Call the functions of the timers of a slot, or hand them to the executor."""
        executor = self._executor
        for timer in list(slot):
            if slot.pop(timer, GONE) is GONE:
                continue  # cancelled after it was due
            timer._slot = None
            try:
                if executor is None:
                    timer.fn(*timer.args)
                else:
                    executor.submit(_call, timer.fn, timer.args)
            except BaseException:
                logger.exception("timer %r failed", timer.fn)

    def _at_exit(self) -> None:
        self.stop()


def _call(fn: Callable[..., object], args: tuple[object, ...]) -> None:
    """Call a timer's function on an executor; log what it raises, and raise it again."""
    try:
        fn(*args)
    except BaseException:
        logger.exception("timer %r failed", fn)
        raise
