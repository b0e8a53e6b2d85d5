"""Reads that may visit every message of a queue, or that have large replies.

A slow read must not delay other requests. So slow reads have a separate lane, where they run one at
a time with a pause after each as long as it took. And a request of 1 KB may contain a thousand
scans: all replies of a batch share one budget of bytes, or each could have the maximum size.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from bide.clock import Clock
from bide.engines.cursor import BEGIN
from bide.lane.lane import Lane
from bide.model import commands as cmd
from bide.model.command_identity import Identity
from bide.model.commands import Cancel, Command, Count, Forecast, Scan
from bide.model.errors import StoreBusy
from bide.model.replies import Claimed, Found, Page, Reply

PAUSE = 1.0
"""The longest pause after a slow read, in seconds."""


class Turns:
    """Turns, one at a time, with a pause after each that is as long as it took."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it while the block runs."""
        await self._turn.acquire()
        began = time.monotonic()
        try:
            yield
        finally:
            pause = min(PAUSE, time.monotonic() - began)
            asyncio.get_running_loop().call_later(pause, self._turn.release)


def is_slow(command: Command) -> bool:
    """Tell whether a command may visit every message of its queue.

    Example:
        >>> is_slow(Count("orders")), is_slow(Count("orders", recount=True))
        (False, True)
    """
    match command:
        case Count():
            return command.recount or command.stored
        case Scan():
            return command.where is not None or command.prefix is not None
        case Cancel():
            return command.only_reads
    return isinstance(command, Forecast)


class SlowReads:
    """Executes slow reads, one at a time.

    Args:
        lane: the lane of all other commands.
    """

    def __init__(self, lane: Lane) -> None:
        self._main = lane
        self._own: Lane | None = None
        self._turns = Turns()

    async def read(self, command: Command, owner: object = None) -> Reply:
        """Execute a slow read, and return its reply.

        Raises:
            StoreError: it was not executed.
        """
        async with self._turns.one():
            if self._own is None:
                self._own = await asyncio.to_thread(self._main.reading_lane) or self._main
            return await self._own.acall(command, owner)

    def close(self) -> None:
        """Close the separate lane, if there is one."""
        if self._own not in (None, self._main):
            self._own.close()


AT_ONCE = 16
"""How many commands with large replies are executed at once: each may return one message of any
size."""

_LARGE = (cmd.Find, cmd.Scan, cmd.Claim, cmd.Explain, cmd.Forecast, cmd.History, cmd.Queues)

_BOUNDED = (cmd.Find, cmd.Scan, cmd.Claim, cmd.History)

_encode = msgspec.msgpack.Encoder().encode

Answer = Reply | BaseException


class Sent(NamedTuple):
    """A command of a batch, and the identity that its sender has given it."""

    command: cmd.Command
    identity: Identity | None = None


class BatchPart(NamedTuple):
    """Commands of a batch that are executed at once; a slow read alone."""

    sent: Sequence[Sent]
    slow: bool = False
    large: int = 0
    """How many of them may have large replies."""


def parts_of(batch: Sequence[Sent]) -> list[BatchPart]:
    """Return the parts of a batch, in order."""
    parts: list[BatchPart] = []
    sent_together: list[Sent] = []
    large = 0
    for sent in batch:
        slow, is_large = is_slow(sent.command), isinstance(sent.command, _LARGE)
        if sent_together and (slow or large + is_large > AT_ONCE):
            parts.append(BatchPart(sent_together, False, large))
            sent_together, large = [], 0
        if slow:
            parts.append(BatchPart([sent], True, int(is_large)))
        else:
            sent_together.append(sent)
            large += is_large
    if sent_together:
        parts.append(BatchPart(sent_together, False, large))
    return parts


async def within_budget(
    batch: Sequence[Sent], execute: Callable[[BatchPart], Awaitable[list[Answer]]], clock: Clock
) -> list[Answer]:
    """Execute commands in order, with at most `MAX_BYTES` for all replies together.

    When the budget is used up, reading commands are not executed: `Find` is answered without
    messages, `Scan` with its own cursor, and `Claim` with a wait of 0. The caller asks again.
    """
    room = cmd.MAX_BYTES
    answers: list[Answer] = []
    for part in parts_of(batch):
        if not part.large:
            answers += await execute(part)
        elif room > 0:
            share = room // part.large
            replies = await execute(
                part._replace(sent=[_bounded(sent, share) for sent in part.sent])
            )
            room -= sum(len(_encode(reply)) for reply in replies if isinstance(reply, Reply))
            answers += replies
        else:
            small = [sent for sent in part.sent if not isinstance(sent.command, _LARGE)]
            remaining = iter(await execute(BatchPart(small)) if small else ())
            answers += [
                _put_off(sent.command, clock.now())
                if isinstance(sent.command, _LARGE)
                else next(remaining)
                for sent in part.sent
            ]
    return answers


def _bounded(sent: Sent, share: int) -> Sent:
    command = sent.command
    if isinstance(command, _BOUNDED) and command.max_bytes > share:
        return Sent(msgspec.structs.replace(command, max_bytes=share), sent.identity)
    return sent


def _put_off(command: cmd.Command, now: int) -> Answer:
    match command:
        case cmd.Find():
            return Found([])
        case cmd.Scan():
            return Page([], command.cursor or BEGIN)
        case cmd.Claim():
            return Claimed([], 0, now, 0)
    return StoreBusy("the replies of this batch are too large together; ask again")
