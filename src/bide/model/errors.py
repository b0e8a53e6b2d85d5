"""Everything bide raises, each with the cause and the mend in its text."""

__all__ = [
    "AccessDenied", "AlreadyExists", "AlreadyMoving", "BideError", "Closed", "Empty",
    "InvalidArgument", "LeaseLost", "NotAStore", "NotEmpty", "OutcomeUnknown", "SchemaTooNew",
    "StoreBusy", "StoreCorrupt", "StoreError", "StoreFull", "StoreReadOnly", "StoreUnavailable",
    "Unsupported", "WrongConnection", "WrongContext",
]  # fmt: skip


class BideError(Exception):
    """The root of all errors of bide."""


class InvalidArgument(BideError, ValueError):
    """An argument that cannot be: a naive datetime, a priority of 300, a body that is no JSON."""


class AlreadyExists(BideError):
    """A put with `on_conflict="raise"` met a message of the same id. Nothing was stored."""


class AlreadyMoving(BideError):
    """Another move out of this store is under way, or one to elsewhere was never finished."""


class LeaseLost(BideError):
    """The lease that an ack, retry, bury or extend speaks of is over. Nothing was changed.

    It lapsed, or the message was settled already; after a lapse the message goes to someone else.
    """


class NotEmpty(BideError):
    """A queue that was to be deleted holds or remembers messages. Nothing was deleted."""


class Empty(BideError):
    """No message fell due within the time that `take` was told to wait."""


class WrongConnection(BideError):
    """The connection given as `within=` cannot carry the command: another database, no transaction.

    Nothing was put or changed.
    """


class WrongContext(BideError, RuntimeError):
    """A blocking `Queue` was used on a running event loop, where it would stop everything else."""


class Closed(BideError):
    """The queue was closed: by `close()`, by leaving its `with` block."""


class Unsupported(BideError):
    """This kind of store cannot do what was asked; the table of capabilities says which can."""


class StoreError(BideError):
    """Something is wrong with the store. What was confirmed before is not affected."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or opened: a missing directory, a server that is down."""


class StoreBusy(StoreUnavailable):
    """Another process kept the store locked for longer than the time-out. Nothing was changed."""


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost after the command was sent: it may have been carried out or not."""


class StoreFull(StoreError):
    """The disk or the server's memory is full. The command was not carried out."""


class AccessDenied(StoreError):
    """A bide server refused the command: it needs a token, or a token that allows more."""


class StoreReadOnly(StoreError):
    """The store can be read but not written: file permissions, a read-only mount, a replica."""


class StoreCorrupt(StoreError):
    """The store's file is damaged. Nothing more is written to it."""


class NotAStore(StoreError):
    """What the URL names exists but was not made by bide. It was left as it is."""


class SchemaTooNew(StoreError):
    """A newer bide made this store. It was left as it is."""
