"""Rights of callers, and the queues that they are for."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from bide.model import commands as cmd
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.identity import SERVER_NAMESPACE, split_name
from bide.model.internal_queues import InternalQueue, internal_queue
from bide.model.limits import MAX_NAME, MAX_PATTERNS
from bide.model.past import PastCommand
from bide.model.undoing import Bulk, Undo

Right = Literal["put", "change", "consume", "read", "bodies", "admin"]

RIGHTS: tuple[Right, ...] = get_args(Right)
"""`put` messages that were never delivered; `change`: replace, edit, reschedule, cancel, close
groups; `consume`: claim, with bodies, and settle; `read`: look, without bodies; `bodies`: look at
bodies and headers as well; `admin`: all of these and everything else."""

SCOPES: dict[str, tuple[Right, ...]] = {
    "produce": ("put", "change"),
    "consume": ("consume",),
    "read": ("read", "bodies"),
    "admin": ("admin",),
}
"""Named sets of rights."""

ALL_QUEUES = ("*",)

PAST_PATH = "/v1/queues/{queue}/past"

_UNLISTED = (InternalQueue.WORKERS, InternalQueue.RECOVERY, InternalQueue.PAST)
"""Internal queues that have a way in of their own, or none."""

_WRITTEN_BY_ADMINS = (InternalQueue.STOPS, InternalQueue.DECLARED)
"""Internal queues in which a message is an order of an admin: to replace a process, or to change
the settings of a queue."""

_PATTERN = re.compile(r"[A-Za-z0-9_.:*-]{1,128}")

_RIGHT_OF_COMMAND: dict[type[cmd.Command], Right] = {
    cmd.Put: "put",
    cmd.Cancel: "change",
    cmd.Reschedule: "change",
    cmd.Postpone: "change",
    cmd.Edit: "change",
    cmd.CloseGroup: "change",
    cmd.ReopenGroup: "change",
    cmd.ClosedGroups: "read",
    cmd.Claim: "consume",
    cmd.Extend: "consume",
    cmd.Ack: "consume",
    cmd.Renew: "consume",
    cmd.RetryCommand: "consume",
    cmd.BuryCommand: "consume",
    cmd.Find: "read",
    cmd.Scan: "read",
    cmd.Count: "read",
    cmd.ForecastCommand: "read",
    cmd.Explain: "read",
    cmd.History: "read",
    cmd.ListEnded: "read",
    cmd.Queues: "read",
    cmd.Release: "admin",
    cmd.Revive: "admin",
    cmd.Configure: "admin",
    cmd.Purge: "admin",
    cmd.Delete: "admin",
}
"""The right of each command, the same as that of its route."""


RIGHT_OF_VERB: dict[str, Right] = {
    "cancel": "change",
    "reschedule": "change",
    "postpone": "change",
    "purge": "admin",
    "revive": "admin",
}
"""The right for a bulk change, and for taking it back."""


def rights_of(
    command: cmd.Command | Bulk | Undo | PastCommand, internal: InternalQueue | None
) -> tuple[Right, ...]:
    """Return the rights that a command needs.

    Args:
        command: the command.
        internal: the internal queue that it is for; `None`: a queue of users.

    Example:
        >>> rights_of(cmd.Put("orders", [], "replace"), None)
        ('put', 'change')
        >>> rights_of(cmd.Put("bide:workers", [], "replace"), InternalQueue.WORKERS)
        ('consume',)
    """
    match command:
        case Bulk() | Undo() if internal in _WRITTEN_BY_ADMINS:
            return ("admin",)
        case Bulk():
            return (RIGHT_OF_VERB[command.verb],)
        case Undo():
            return ()  # the right of the change that is undone, which the store knows
        case PastCommand():
            return ("read",)
        case cmd.Cancel() if command.only_reads:
            return ("read",)
        case cmd.Put(on_conflict="revive"):
            return ("admin",)
        case cmd.Put():
            for item in command.items:
                if item.has_past:  # a producer could blame a worker for what it never did
                    return ("admin",)
        case cmd.BuryCommand() if command.ids:
            return ("admin",)
    if internal is InternalQueue.STOPS:  # a supervisor looks for requests; an admin makes them
        return ("consume",) if isinstance(command, (cmd.Find, cmd.Cancel)) else ("admin",)
    if internal is InternalQueue.DECLARED and not command.only_reads:
        return ("admin",)  # who may change settings
    if internal is InternalQueue.WORKERS and not command.only_reads:
        return ("consume",)  # a worker's heartbeat
    if isinstance(command, cmd.Put) and command.on_conflict == "replace":
        return ("put", "change")
    return (_RIGHT_OF_COMMAND[type(command)],)


def is_for_admins(internal: InternalQueue | None, *, only_reads: bool) -> bool:
    """Tell whether an operation on the queue in its path is for admins, whatever its own right is.

    What workers and supervisors send to internal queues, they send in batches, where `rights_of`
    and `check_heartbeat` see each command. Everything else there is for admins, as in a batch.

    Args:
        internal: the internal queue that the path names; `None`: a queue of users.
        only_reads: whether the operation changes nothing.

    Example:
        >>> is_for_admins(InternalQueue.DECLARED, only_reads=False), is_for_admins(
        ...     None, only_reads=False
        ... )
        (True, False)
    """
    if internal is InternalQueue.STOPS:
        return True
    return not only_reads and internal in (InternalQueue.DECLARED, InternalQueue.WORKERS)


def is_readable(queue: str, *, by_admin: bool) -> bool:
    """Tell whether a caller may read a queue, if it is one of its queues.

    Others are not listed either: who reads all that is listed would be refused.

    Args:
        queue: the name of the queue.
        by_admin: whether the caller is an admin.

    Example:
        >>> is_readable("bide:stops", by_admin=False), is_readable("bide:stops", by_admin=True)
        (False, True)
        >>> is_readable("bide:undo", by_admin=True)
        False
    """
    internal = internal_queue(queue)
    if internal is InternalQueue.UNDO:
        return False
    return by_admin or not is_for_admins(internal, only_reads=True)


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request, with its rights.

    A caller has its own names of queues: without the namespace, if its token is for one. In the
    store, each queue has its full name, such as shop/orders.
    """

    namespace: str | None
    """The namespace; `None`: the whole store."""
    rights: frozenset[str]
    """Names of rights, see `RIGHTS`."""
    queues: tuple[str, ...] = ALL_QUEUES
    """Patterns of the queues that the rights are for."""
    token: str | None = None
    """The id of the token, or the subject of a JWT; `None`: the server asks for no token."""
    name: str = ""
    """The name of the token, for the action log."""

    def may(self, right: str) -> bool:
        """Tell whether the caller has a right; `admin` includes all."""
        return right in self.rights or "admin" in self.rights

    def need(self, *rights: str) -> None:
        """Refuse a caller who lacks a right.

        Raises:
            AccessDenied: naming the right.
        """
        for right in rights:
            if not self.may(right):
                raise AccessDenied(
                    f"the token has no right {right!r}, which this needs; bide token create "
                    f"--rights {right} makes one that has it"
                )

    @property
    def of_all_queues(self) -> bool:
        """Whether the rights are for all queues of the namespace."""
        return "*" in self.queues

    def sees(self, queue: str) -> bool:
        """Tell whether the rights are for a queue, by its name within the namespace."""
        return "*" in self.queues or (len(queue) <= MAX_NAME and fits_any(self.queues, queue))

    def need_queue(
        self, queue: str, internal: InternalQueue | None, *, heartbeat: bool = False
    ) -> None:
        """Refuse a queue that the rights are not for.

        Args:
            queue: the caller's name of the queue.
            internal: the internal queue that it is; `None`: a queue of users.
            heartbeat: whether the command is part of a heartbeat, which every worker may send: it
                writes to a register of workers, or reads requests to stop.

        Raises:
            AccessDenied: naming the queue.
        """
        is_for_heartbeats = internal is InternalQueue.WORKERS or internal is InternalQueue.STOPS
        if not (heartbeat and is_for_heartbeats) and not self.sees(queue):
            raise AccessDenied(
                f"the token is for the queues {', '.join(self.queues)}, and "
                f"queue={queue[:MAX_NAME]!r} is none of them"
            )
        if internal is InternalQueue.RECOVERY:  # a message there lets workers wait
            raise AccessDenied(
                f"queue={queue!r} records who carries out plans for overdue messages, and no "
                "caller reads or writes it"
            )
        if internal is InternalQueue.PAST:  # it is about the queues of all callers
            raise AccessDenied(
                f"queue={queue!r} records what happened in all queues, and no caller reads or "
                f"writes it; GET {PAST_PATH} shows that of one"
            )
        if internal is InternalQueue.UNDO:  # undo trusts these records
            raise AccessDenied(
                f"queue={queue!r} contains the undo records of bide, which no caller reads or "
                "writes; undo takes a change back"
            )

    def full(self, queue: str) -> str:
        """Return the name of a queue in the store.

        A caller without a namespace names the namespace of a queue: shop/orders.

        Raises:
            InvalidArgument: the queue is internal to the server.
            AccessDenied: the rights are not for this queue.
        """
        self.need_queue(queue, internal_queue(queue))
        return self.prefix(queue)

    def prefix(self, queue: str) -> str:
        """Return the prefix in the store for a prefix of the caller's names of queues.

        Raises:
            InvalidArgument: the queues are internal to the server.
        """
        if self.namespace is not None:
            return f"{self.namespace}/{queue}"
        if queue.startswith(f"{SERVER_NAMESPACE}/"):
            raise InvalidArgument(
                f"queue={queue!r} is internal to the server; make tokens with the URL of the store "
                "that it serves, and subscriptions at its own /v1/subscriptions"
            )
        return queue

    def registers(self, names: Iterable[str]) -> list[str]:
        """Return those queues, by full names, in which workers of the caller's queues report.

        A worker of the whole store reports in the register without a namespace.
        """
        register = InternalQueue.WORKERS
        if self.namespace is None:
            return [name for name in names if register.matches(name)]
        of_namespace = register.value, f"{self.namespace}/{register.value}"
        return [name for name in names if name in of_namespace]

    def own(self, full: str) -> str | None:
        """Return the caller's name of a queue, `None` if the caller may not see the queue.

        Registers of workers, the records of who recovers a queue, and the record of the past are
        not listed among the queues of anyone.

        Args:
            full: the full name of the queue.
        """
        namespace, _, queue = full.rpartition("/")
        is_foreign = namespace == SERVER_NAMESPACE or self.namespace not in (None, namespace)
        if is_foreign or internal_queue(full) in _UNLISTED:
            return None
        name = full if self.namespace is None else queue
        return name if self.sees(name) else None

    def name_of(self, full: str) -> str:
        """Return the caller's name of a subscription whose queue the caller may see."""
        if self.namespace is None:
            return full
        _namespace, name = split_name(full)
        return name


OPEN = Caller(None, frozenset(RIGHTS))
"""Any caller of a server without tokens."""


@lru_cache(maxsize=4_096)
def fits_any(patterns: tuple[str, ...], queue: str) -> bool:
    """Return whether one of the patterns fits the name of a queue."""
    return any(fnmatchcase(queue, pattern) for pattern in patterns)


def check_rights(rights: Iterable[str]) -> tuple[Right, ...]:
    """Return rights in the order of `RIGHTS`, each once.

    Raises:
        InvalidArgument: one of them does not exist, or there are none.
    """
    names = list(rights)
    unknown = [name for name in names if name not in RIGHTS]
    if unknown or not names:
        raise InvalidArgument(f"rights={','.join(unknown)!r} must be among {', '.join(RIGHTS)}")
    return tuple(right for right in RIGHTS if right in names)


def check_patterns(patterns: Iterable[str], namespace: str | None) -> tuple[str, ...]:
    """Return patterns of queue names, each once: a name in which `*` matches any text.

    Args:
        patterns: the patterns.
        namespace: the namespace of the queues; `None`: the whole store, where a pattern may name a
            namespace.

    Raises:
        InvalidArgument: one of them cannot match a queue, they are one text, or there are none or
            too many.
    """
    distinct_patterns = valid_patterns(patterns, namespace)
    if not 0 < len(distinct_patterns) <= MAX_PATTERNS:
        raise InvalidArgument(
            f"queues has {len(distinct_patterns)} patterns; write 1 to {MAX_PATTERNS}"
        )
    return distinct_patterns


def valid_patterns(patterns: Iterable[str], namespace: str | None) -> tuple[str, ...]:
    """Return patterns as `check_patterns` does, whatever their number.

    Raises:
        InvalidArgument: one of them cannot match a queue, or they are one text.
    """
    if isinstance(patterns, str):  # ("orders.*") has no comma: each letter would be a pattern
        raise InvalidArgument(
            f"queues={patterns!r} is a text and no list of patterns; write queues=[{patterns!r}]"
        )
    distinct_patterns = tuple(dict.fromkeys(patterns))
    for pattern in distinct_patterns:
        without_slash = pattern.replace("/", "", 1) if namespace is None else pattern
        if not _PATTERN.fullmatch(without_slash):
            raise InvalidArgument(
                f"queues={pattern!r} is not a pattern of queues: letters, digits, _ . : - and * "
                "for any text, such as orders.*"
            )
    return distinct_patterns
