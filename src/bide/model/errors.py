"""The exceptions of bide, but for `NotAcked`. Each text names the cause and the fix."""

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "AlreadyMoving",
    "BideError",
    "Closed",
    "Empty",
    "GroupClosed",
    "InvalidArgument",
    "LeaseLost",
    "NotAStore",
    "NotEmpty",
    "NotEnded",
    "NotRemembered",
    "NothingToUndo",
    "OutcomePending",
    "OutcomeUnknown",
    "SchemaTooNew",
    "StopRequested",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "UnreadableBody",
    "Unsupported",
    "WrongConnection",
    "WrongContext",
]


class BideError(Exception):
    """The base of all exceptions of bide."""


class InvalidArgument(BideError, ValueError):
    """An argument is not valid: a naive datetime, a priority of 300, a body that is not JSON."""


class AlreadyExists(BideError):
    """A put with `on_conflict="raise"` found a message with this id. Nothing was stored."""


class GroupClosed(BideError):
    """A put with `on_conflict="raise"` is into a group that is closed. Nothing was stored."""


class AlreadyMoving(BideError):
    """Another move out of this store is running, or one to another store was not finished."""


class LeaseLost(BideError):
    """The lease of an ack, retry, bury or extend has ended. Nothing was changed.

    It expired, or the message was settled before. After an expiry another worker gets the message.
    """


class StopRequested(LeaseLost):
    """Somebody has cancelled the message while it was worked on: clean up, and end.

    The lease still lasts. To ack the message is still possible; any other end counts as cancelled.
    """


class NotEnded(BideError):
    """A message has no result yet: it is still in the queue."""


class NotRemembered(BideError):
    """A result was requested, but the store knows nothing of the message."""


class NothingToUndo(BideError):
    """No bulk change can be taken back by this token: it is wrong, or ten minutes have passed."""


class NotEmpty(BideError):
    """The queue holds or remembers messages, so it was not deleted."""


class Empty(BideError):
    """No message was due within the `wait` of `take`."""


class OutcomePending(BideError):
    """An outcome was asked for true or false, and is neither yet.

    The command waits in an outbox or for a commit, and only the store knows whether the message
    exists or is held. Or a message was cancelled whose worker is stopping: it may still ack.
    """


class WrongConnection(BideError):
    """The connection given as `within=` cannot carry the command: another database, no transaction.

    Nothing was put or changed.
    """


class WrongContext(BideError, RuntimeError):
    """Something was used where it cannot work, such as a blocking `Queue` on an event loop."""


class Closed(BideError):
    """The queue was closed, by `close()` or at the end of its `with` block."""


class UnreadableBody(BideError, ValueError):
    """A stored body is JSON that cannot be read. Its bytes are in `message.data`."""


class Unsupported(BideError):
    """This kind of store cannot do this; see the table of capabilities."""


class StoreError(BideError):
    """The store failed. Changes that were confirmed before are not affected."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or opened: a missing folder, a server that is down."""

    lasts = False
    """Whether waiting alone does not help, as with a wrong password."""


class StoreBusy(StoreUnavailable):
    """Another process locked the store for longer than the timeout. Nothing was changed."""


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost after the command was sent: it may have been executed."""


class StoreFull(StoreError):
    """The disk or the server's memory is full. The command was not executed."""


class AccessDenied(StoreError):
    """A bide server refused the command: it needs a token, or a token that allows more."""


class StoreReadOnly(StoreError):
    """The store can be read but not written: file permissions, a read-only mount, a replica."""


class StoreCorrupt(StoreError):
    """What is stored cannot be read: a damaged file, or a record that something else changed.

    Nothing more is written to a damaged file, and a message that cannot be read is not changed.
    """


class NotAStore(StoreError):
    """The URL names something that bide did not create. It was not changed."""


class SchemaTooNew(StoreError):
    """A newer version of bide created this store. It was not changed."""
