"""The queue as programs use it: `Queue` for threads, `AsyncQueue` for event loops."""

from bide.queue.aio import AsyncQueue
from bide.queue.answers import Audit, Forecast
from bide.queue.delivery import AsyncDelivery, Delivery
from bide.queue.sync import Queue

__all__ = ["AsyncDelivery", "AsyncQueue", "Audit", "Delivery", "Forecast", "Queue"]
