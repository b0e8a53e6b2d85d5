"""What a visitor of the dashboard may see and do."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from bide.model.errors import InvalidArgument
from bide.server.access.rights import (
    ALL_QUEUES,
    RIGHT_OF_VERB,
    Caller,
    Right,
    is_readable,
    valid_patterns,
)

RIGHTS: dict[str, Right] = {
    # A postponement is a part of a recovery, which the dashboard has no form for.
    **{verb: right for verb, right in RIGHT_OF_VERB.items() if verb != "postpone"},
    "edit": "change",
    "hold": "change",
    "resume": "change",
    "run_now": "change",
    "copy": "put",
    "release": "admin",
    "pause": "admin",
    "delete": "admin",
    "subscriptions": "admin",
    "audit": "read",
    "stop": "admin",
}
"""The right of a token that each action needs."""

ACTIONS = tuple(RIGHTS)
"""All that can be done: `cancel`, `reschedule` and `edit` messages; `hold`, `resume` and `run_now`
those that repeat; `copy` one under a new id; `release` one that a worker holds; `revive` and
`purge` dead letters; `pause` and resume a queue; `delete` an empty one; pause and resume
`subscriptions`; `audit`: count all messages of a queue; `stop` a worker process, which its
supervisor replaces."""


class Access(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a visitor may see and do; by default see all queues and change nothing.

    Args:
        name: who it is, for the log of actions.
        actions: some of `ACTIONS`.
        bodies: whether bodies and headers are shown.
        namespace: whose queues are shown; `None`: those of the whole store.
        queues: patterns of the queues that are shown, such as ["orders.*"].
        log: whether the action log is shown, as far as it is about these queues.

    Raises:
        InvalidArgument: an action does not exist, or a pattern cannot match a queue.

    Example:
        >>> Access(name="ann", actions={"cancel", "revive"}).may("purge")
        False
    """

    name: str = ""
    actions: Collection[str] = ()
    bodies: bool = True
    namespace: str | None = None
    queues: Collection[str] = ALL_QUEUES
    log: bool = False

    def __post_init__(self) -> None:
        if unknown := [action for action in self.actions if action not in ACTIONS]:
            raise InvalidArgument(f"actions={unknown!r} must be among {', '.join(ACTIONS)}")
        _ = self.caller  # checks the patterns

    @classmethod
    def of(cls, caller: Caller) -> "Access":
        """Return what the holder of a token may see and do.

        Raises:
            AccessDenied: the token has no right to read.
        """
        caller.need("read")
        return cls(
            name=caller.name or caller.token or "",
            actions=[action for action, right in RIGHTS.items() if caller.may(right)],
            bodies=caller.may("bodies"),
            namespace=caller.namespace,
            queues=caller.queues,
            log=caller.may("admin"),
        )

    def may(self, action: str) -> bool:
        """Tell whether an action is allowed."""
        return action in self.actions

    def may_read(self, queue: str) -> bool:
        """Tell whether a queue is shown, if it is one of the visitor's queues.

        Requests to stop workers are shown to those who may make them.

        Args:
            queue: its name.
        """
        return is_readable(queue, by_admin=self.may("stop"))

    @property
    def sight(self) -> Hashable:
        """All that decides which queues are shown: who shares it may share what was read of them.

        Example:
            >>> Access(name="ann", actions=["cancel"]).sight == Access(name="bob").sight
            True
            >>> Access(name="ann", actions=["stop"]).sight == Access(name="bob").sight
            False
        """
        return self.caller, self.may("stop")

    @cached_property
    def caller(self) -> Caller:
        """Whose names of queues these are."""
        return Caller(self.namespace, frozenset(), valid_patterns(self.queues, self.namespace))


AccessFunction = Callable[[Mapping[str, Any]], Access | Awaitable[Access | None] | None]
"""Takes the ASGI scope of a request; returns what its visitor may, `None`: nothing at all."""
