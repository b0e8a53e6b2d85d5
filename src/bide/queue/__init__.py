"""The queue as programs use it: `Queue` for threads, `AsyncQueue` for event loops."""

from bide.queue.aio import AsyncQueue
from bide.queue.delivery import AsyncDelivery, Delivery
from bide.queue.results import Audit, Forecast
from bide.queue.sync import Queue
from bide.queue.transfer import Imported

__all__ = ["AsyncDelivery", "AsyncQueue", "Audit", "Delivery", "Forecast", "Imported", "Queue"]
