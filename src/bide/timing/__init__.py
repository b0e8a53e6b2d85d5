"""Timers within one process: delay queues, a timing wheel and a scheduled executor."""

from bide.timing.calendar_queue import Delayed
from bide.timing.delay_queue import DelayQueue
from bide.timing.errors import Forked, ShutDown
from bide.timing.timing_wheel import TimerHandle, TimingWheel

__all__ = ["DelayQueue", "Delayed", "Forked", "ShutDown", "TimerHandle", "TimingWheel"]
