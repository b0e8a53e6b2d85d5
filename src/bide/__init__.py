"""bide: a delay queue for Python. Messages that bide their time.

`Queue` is where to begin; `AsyncQueue` is the same for event loops.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bide.model import errors as _errors
from bide.model.ended import End, Ended, NotAcked
from bide.model.errors import *  # noqa: F403  (all of them are public)
from bide.model.message import Failure, Message, NewMessage, Progress
from bide.model.replies import ClosedGroup, Counts, Flow, Outcome, Sizes
from bide.queue.delivery import AsyncDelivery, Delivery
from bide.queue.results import Audit, Cancelled, Closing, Forecast, Imported
from bide.queue.sync import Queue

# The rest is imported when a program asks for it: a program that only puts needs no worker.
if TYPE_CHECKING:
    from bide.consuming.handling import Handling
    from bide.consuming.outcomes import Bury, Discard, Retry
    from bide.importing import TakenOver, take_over
    from bide.importing.redis_sorted_set import LoadedSet, load_sorted_set
    from bide.model.backoff import Backoff
    from bide.model.past import Past, PastSlot
    from bide.model.recovery import Overdue, Recovered, Recovery
    from bide.model.repeat import Cron, Every, Repeat
    from bide.model.undoing import Undoable, Undone
    from bide.model.window import Window
    from bide.moving import Moved, move
    from bide.observing.explanation import Explanation
    from bide.observing.workers import WorkerProcess
    from bide.queue.aio import AsyncQueue
    from bide.queue.search import SearchPage
    from bide.queue.stores import aqueues, asearch, queues, search, stop_worker, workers
    from bide.server.subscriptions.subscribe import subscribe, unsubscribe
    from bide.worker.app.app import App, Job
    from bide.worker.app.task import Task
    from bide.worker.periodic.tick import Tick, next_time
else:
    _MODULES = {
        "App": "bide.worker.app.app",
        "AsyncQueue": "bide.queue.aio",
        "Backoff": "bide.model.backoff",
        "Bury": "bide.consuming.outcomes",
        "Discard": "bide.consuming.outcomes",
        "Cron": "bide.model.repeat",
        "Every": "bide.model.repeat",
        "Explanation": "bide.observing.explanation",
        "Handling": "bide.consuming.handling",
        "Job": "bide.worker.app.app",
        "LoadedSet": "bide.importing.redis_sorted_set",
        "Moved": "bide.moving",
        "Overdue": "bide.model.recovery",
        "Past": "bide.model.past",
        "PastSlot": "bide.model.past",
        "Recovered": "bide.model.recovery",
        "Recovery": "bide.model.recovery",
        "Repeat": "bide.model.repeat",
        "Retry": "bide.consuming.outcomes",
        "SearchPage": "bide.queue.search",
        "TakenOver": "bide.importing",
        "Task": "bide.worker.app.task",
        "Tick": "bide.worker.periodic.tick",
        "Undoable": "bide.model.undoing",
        "Undone": "bide.model.undoing",
        "Window": "bide.model.window",
        "WorkerProcess": "bide.observing.workers",
        "aqueues": "bide.queue.stores",
        "asearch": "bide.queue.stores",
        "load_sorted_set": "bide.importing.redis_sorted_set",
        "move": "bide.moving",
        "next_time": "bide.worker.periodic.tick",
        "queues": "bide.queue.stores",
        "search": "bide.queue.stores",
        "stop_worker": "bide.queue.stores",
        "subscribe": "bide.server.subscriptions.subscribe",
        "take_over": "bide.importing",
        "unsubscribe": "bide.server.subscriptions.subscribe",
        "workers": "bide.queue.stores",
    }

    def __getattr__(name: str) -> Any:
        """Import a name of the list above, and keep it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})


__all__ = [
    "App",
    "AsyncDelivery",
    "AsyncQueue",
    "Audit",
    "Backoff",
    "Bury",
    "Cancelled",
    "ClosedGroup",
    "Closing",
    "Counts",
    "Cron",
    "Delivery",
    "Discard",
    "End",
    "Ended",
    "Every",
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
    "NotAcked",
    "Outcome",
    "Overdue",
    "Past",
    "PastSlot",
    "Progress",
    "Queue",
    "Recovered",
    "Recovery",
    "Repeat",
    "Retry",
    "SearchPage",
    "Sizes",
    "TakenOver",
    "Task",
    "Tick",
    "Undoable",
    "Undone",
    "Window",
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
