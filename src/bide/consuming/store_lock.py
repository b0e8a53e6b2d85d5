"""A lock in a store: one process of all has the right to do something.

It is a message in an internal queue. Its holder puts it off again and again; if that process dies,
the message is due after a while, and the next process takes it.
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from bide.clock import Clock
from bide.model.commands import Cancel, Command, Find, Put
from bide.model.errors import BideError
from bide.model.message import Item, Message, version_of
from bide.model.replies import Found, Outcomes

Ask = Callable[[Command], Awaitable[Any]]
"""Executes a command; returns its reply."""

LOCKED = 30_000
"""Milliseconds after which the lock of a process that has died is free."""

RENEW = 5.0
"""Seconds after which a process says again that it is at work."""


class LockLost(Exception):
    """Another process has the lock: this one was silent for too long."""


class StoreLock:
    """The right of one process to do something.

    Args:
        queue: the internal queue with the message.
        id: of the message.
        ask: executes commands on the store.
        clock: measures when to renew the lock.
    """

    def __init__(self, queue: str, id: str, ask: Ask, clock: Clock) -> None:
        self._queue, self._id = queue, id
        self._ask, self._clock = ask, clock
        self._mark = secrets.token_hex(8).encode()
        """The body of the message: it tells this process from others."""
        self._version = ""
        self._renewed_at = 0.0

    async def look(self) -> Message | None:
        """Return the lock of the process that has it, or had it and died; `None`: it is free."""
        reply: Found = await self._ask(Find(self._queue, [self._id]))
        return reply.messages[0]

    async def take(self, before: Message | None) -> bool:
        """Take the lock if it is free, or still is the one of a process that has died."""
        item = Item(self._id, self._mark, json=False, delay=LOCKED)
        put = Put(self._queue, [item])
        if before is not None:
            put = Put(self._queue, [item], "replace", before.version)
        return await self._holds(item, put)

    async def renew(self) -> None:
        """Keep the lock.

        Raises:
            LockLost: another process has taken it.
        """
        if self._clock.monotonic() - self._renewed_at < RENEW:
            return
        item = Item(self._id, self._mark, json=False, delay=LOCKED)
        if not await self._holds(item, Put(self._queue, [item], "replace", self._version)):
            raise LockLost

    async def _holds(self, item: Item, put: Put) -> bool:
        """Put the message of the lock; return whether that was done."""
        reply: Outcomes = await self._ask(put)
        (outcome,) = reply.outcomes
        if outcome.done and outcome.due is not None:
            self._version = version_of(item, outcome.due)
            self._renewed_at = self._clock.monotonic()
        return outcome.done

    async def release(self) -> None:
        """Free the lock, unless another process has it; if the store is away, time does."""
        with suppress(BideError):
            await self._ask(Cancel(self._queue, [self._id], if_version=self._version))
