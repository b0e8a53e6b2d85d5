"""bide: a delay queue for Python. Messages that bide their time.

`Queue` is where to begin; `AsyncQueue` is the same for event loops.
"""

from bide.consuming.handling import Handling
from bide.consuming.outcomes import Bury, Discard, Retry
from bide.exports import Imported
from bide.importing import TakenOver, take_over
from bide.importing.redis_sorted_set import LoadedSet, load_sorted_set
from bide.model import errors as _errors
from bide.model.backoff import Backoff
from bide.model.ended import End
from bide.model.errors import *  # noqa: F403  (all of them are public)
from bide.model.message import Failure, Message, NewMessage
from bide.model.replies import Counts, Flow, Outcome, Sizes
from bide.model.undoing import Undone
from bide.moving import Moved, move
from bide.observing.explanation import Explanation
from bide.observing.workers import WorkerProcess
from bide.queue.aio import AsyncQueue
from bide.queue.delivery import AsyncDelivery, Delivery
from bide.queue.results import Audit, Forecast
from bide.queue.search import SearchPage
from bide.queue.stores import aqueues, asearch, queues, search, stop_worker, workers
from bide.queue.sync import Queue
from bide.server.subscriptions.subscribe import subscribe, unsubscribe
from bide.undoing.changes import Undoable
from bide.worker.app.app import App, Job
from bide.worker.periodic.tick import Tick, next_time

__all__ = [
    "App",
    "AsyncDelivery",
    "AsyncQueue",
    "Audit",
    "Backoff",
    "Bury",
    "Counts",
    "Delivery",
    "Discard",
    "End",
    "Explanation",
    "Failure",
    "Flow",
    "Forecast",
    "Handling",
    "Imported",
    "Job",
    "LoadedSet",
    "Message",
    "Moved",
    "NewMessage",
    "Outcome",
    "Queue",
    "Retry",
    "SearchPage",
    "Sizes",
    "TakenOver",
    "Tick",
    "Undoable",
    "Undone",
    "WorkerProcess",
    "aqueues",
    "asearch",
    "load_sorted_set",
    "move",
    "next_time",
    "queues",
    "search",
    "stop_worker",
    "subscribe",
    "take_over",
    "unsubscribe",
    "workers",
]
__all__ += _errors.__all__
