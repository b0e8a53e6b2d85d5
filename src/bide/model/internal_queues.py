"""The names of the queues that bide uses itself, all of them, and how to recognize one."""

from enum import Enum

from bide.model.identity import SERVER_NAMESPACE

INTERNAL_PREFIX = "bide:"
"""How the names of internal queues begin; a namespace may precede it."""


class InternalQueue(Enum):
    """A queue that bide uses itself.

    Those that begin with `bide:` exist once in each namespace that needs them, and once in a store
    without namespaces. Those of servers, and the record of the past, exist once in a store.
    """

    WORKERS = f"{INTERNAL_PREFIX}workers"
    """The register: reports of worker processes, one message for each process."""
    STOPS = f"{INTERNAL_PREFIX}stops"
    """Requests to replace a worker process."""
    UNDO = f"{INTERNAL_PREFIX}undo"
    """Records of bulk changes; they contain bodies of all queues of the namespace."""
    MOVE = f"{INTERNAL_PREFIX}move"
    """The ledger of a move to another store."""
    SOURCE = f"{INTERNAL_PREFIX}source:"
    """Windows of a source: each source has a queue whose name begins with this."""
    DECLARED = f"{INTERNAL_PREFIX}declared"
    """Settings that apps declare, as they were applied last: one message for each queue."""
    ZONES = f"{INTERNAL_PREFIX}zones"
    """By which version of time zones the messages of each queue are planned: one message each; and
    which process of the store plans them anew."""
    RECOVERY = f"{INTERNAL_PREFIX}recovery"
    """Who carries out the plan of a queue for what is overdue: one message for each such queue."""
    PAST = f"{INTERNAL_PREFIX}past"
    """The record of the past of all queues: one message for each slot of time."""
    TOKENS = f"{SERVER_NAMESPACE}/tokens"
    """Access tokens, without their secrets."""
    KEYS = f"{SERVER_NAMESPACE}/keys"
    """The key that signs leases."""
    SUBSCRIPTIONS = f"{SERVER_NAMESPACE}/subscriptions"
    """Subscriptions: where messages are pushed to."""
    CIRCUITS = f"{SERVER_NAMESPACE}/circuits"
    """Subscriptions that send nothing for a while, because the receiver fails."""
    PUSHERS = f"{SERVER_NAMESPACE}/pushers"
    """Processes that push, one message for each process."""
    RABBITMQ = f"{SERVER_NAMESPACE}/rabbitmq"
    """Messages on their way from RabbitMQ into a queue."""

    def beside(self, queue: str) -> str:
        """Return the name of this internal queue in the namespace of a queue.

        Example:
            >>> InternalQueue.UNDO.beside("orders"), InternalQueue.UNDO.beside("shop/orders")
            ('bide:undo', 'shop/bide:undo')
        """
        namespace, slash, _ = queue.rpartition("/")
        return f"{namespace}{slash}{self.value}"

    def matches(self, queue: str) -> bool:
        """Tell whether a queue is this internal queue, in any namespace.

        Example:
            >>> InternalQueue.WORKERS.matches("shop/bide:workers")
            True
            >>> InternalQueue.SOURCE.matches("bide:source:orders:unpaid")
            True
            >>> InternalQueue.TOKENS.matches("tokens")
            False
        """
        if self.value.startswith(SERVER_NAMESPACE):
            return queue == self.value
        name = queue.rpartition("/")[2]
        return name.startswith(self.value) if self is InternalQueue.SOURCE else name == self.value


def is_internal(queue: str) -> bool:
    """Tell whether a name is reserved for internal queues, of this or another version of bide.

    Example:
        >>> is_internal("bide:workers"), is_internal("shop/bide:move"), is_internal("bide:new")
        (True, True, True)
        >>> is_internal("bide.server/tokens"), is_internal("orders"), is_internal("shop/orders")
        (True, False, False)
    """
    namespace, _, name = queue.rpartition("/")
    return namespace == SERVER_NAMESPACE or name.startswith(INTERNAL_PREFIX)


def internal_queue(queue: str) -> InternalQueue | None:
    """Return which internal queue a name is, in any namespace; `None` for a queue of users.

    Example:
        >>> internal_queue("shop/bide:undo"), internal_queue("orders")
        (<InternalQueue.UNDO: 'bide:undo'>, None)
    """
    if not is_internal(queue):
        return None
    return next((internal for internal in InternalQueue if internal.matches(queue)), None)


def is_listed(queue: str, prefix: str = "") -> bool:
    """Tell whether a queue is listed among those with a prefix.

    Internal queues are listed only if the prefix is one of theirs.

    Example:
        >>> is_listed("orders"), is_listed("bide:move"), is_listed("bide:move", "bide:")
        (True, False, True)
    """
    return is_internal(prefix) or not is_internal(queue)
