"""Timers within one process: delay queues, a timing wheel and a scheduled executor."""

from bide.timing.base import Delayed
from bide.timing.delay_queue import AsyncDelayQueue, DelayQueue
from bide.timing.lifetime import Forked, ShutDown
from bide.timing.scheduled_executor import ScheduledExecutor
from bide.timing.timing_wheel import TimerHandle, TimingWheel
from bide.timing.worker_pool import ScheduledFuture

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
