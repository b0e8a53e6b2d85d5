"""bide: a delay queue for Python. Messages that bide their time.

`Queue` is where to begin; `AsyncQueue` is the same for event loops.
"""

from bide.model.errors import (
    AlreadyExists,
    BideError,
    Closed,
    Empty,
    InvalidArgument,
    LeaseLost,
    NotAStore,
    OutcomeUnknown,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    Unsupported,
    WrongContext,
)
from bide.model.message import Failure, Message, NewMessage
from bide.model.replies import Counts, Flow, Outcome, Sizes
from bide.queue import AsyncDelivery, AsyncQueue, Audit, Delivery, Forecast, Imported, Queue

__all__ = [
    "AlreadyExists",
    "AsyncDelivery",
    "AsyncQueue",
    "Audit",
    "BideError",
    "Closed",
    "Counts",
    "Delivery",
    "Empty",
    "Failure",
    "Flow",
    "Forecast",
    "Imported",
    "InvalidArgument",
    "LeaseLost",
    "Message",
    "NewMessage",
    "NotAStore",
    "Outcome",
    "OutcomeUnknown",
    "Queue",
    "SchemaTooNew",
    "Sizes",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "Unsupported",
    "WrongContext",
]
