"""Timers within one process: delay queues, a timing wheel and a scheduled executor."""

from bide.timing.async_delay_queue import AsyncDelayQueue
from bide.timing.delay_heap import Delayed
from bide.timing.delay_queue import DelayQueue
from bide.timing.errors import Forked, ShutDown
from bide.timing.scheduled_executor import ScheduledExecutor
from bide.timing.scheduled_future import ScheduledFuture
from bide.timing.timing_wheel import TimerHandle, TimingWheel

__all__ = [
    "AsyncDelayQueue",
    "DelayQueue",
    "Delayed",
    "Forked",
    "ScheduledExecutor",
    "ScheduledFuture",
    "ShutDown",
    "TimerHandle",
    "TimingWheel",
]
