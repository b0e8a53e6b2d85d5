"""Batches: commands that a request sends together.

They are executed in their order. A request of 1 KB may contain a thousand scans: all replies of a
batch share one budget of bytes, or each could have the maximum size.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bide.clock import Clock
from bide.engines.cursor import BEGIN
from bide.engines.ended_pages import EndPosition
from bide.engines.port import Identity
from bide.model import commands as cmd
from bide.model.errors import StoreBusy
from bide.model.replies import Claimed, EndedPage, Found, Page, Reply
from bide.server.limits.gate import Gate, Visit
from bide.server.limits.reply_budget import room_for
from bide.server.limits.slow_reads import is_slow
from bide.server.problem import Problem

MOST_UNDER_WAY = 5_000
"""Commands of batches that may be under way. The lane accepts twice as many without delay, so the
commands of one batch keep their order."""

MOST_LARGE_AT_ONCE = 16
"""How many commands with large replies are executed at once: each may return one message of any
size."""

_WITH_LARGE_REPLIES = (
    cmd.Find,
    cmd.Scan,
    cmd.Claim,
    cmd.Explain,
    cmd.ForecastCommand,
    cmd.History,
    cmd.ListEnded,
    cmd.Queues,
    cmd.ClosedGroups,
)

_WITH_MAX_BYTES = (cmd.Find, cmd.Scan, cmd.Claim, cmd.History, cmd.ListEnded)

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
    large_count: int = 0
    """How many of them may have large replies."""


def parts_of(batch: Sequence[Sent]) -> list[BatchPart]:
    """Return the parts of a batch, in order."""
    parts: list[BatchPart] = []
    together: list[Sent] = []
    large_count = 0
    for sent in batch:
        slow = is_slow(sent.command)
        own_count = 1 if isinstance(sent.command, _WITH_LARGE_REPLIES) else 0
        if together and (slow or large_count + own_count > MOST_LARGE_AT_ONCE):
            parts.append(BatchPart(together, large_count=large_count))
            together, large_count = [], 0
        if slow:
            parts.append(BatchPart([sent], slow=True, large_count=own_count))
        else:
            together.append(sent)
            large_count += own_count
    if together:
        parts.append(BatchPart(together, large_count=large_count))
    return parts


class Batches:
    """Executes the batches of a process.

    Args:
        gate: executes commands within the limits.
        clock: the clock of the store.
    """

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._under_way = 0
        """How many commands of batches are under way."""
        self._fewer_under_way = asyncio.Event()
        """Set when fewer commands are under way."""

    async def execute(self, batch: Sequence[Sent], visit: Visit) -> list[Answer]:
        """Execute commands in order; return a reply or an error for each.

        All replies share the room of one reply, `MAX_BYTES`. When it is used up, reading commands
        are not executed: `Find` is answered without messages, `Scan` and `ListEnded` with their own
        cursor, and `Claim` with a wait of 0. The caller asks again. If the client goes, the rest of
        a batch that only reads is not executed.

        Args:
            batch: the commands.
            visit: the request.

        Raises:
            Problem: there is no room for the replies.
            ClientGone: the client has gone.
        """
        parts = parts_of(batch)
        only_reads, wanted_room = True, 0
        for command, _identity in batch:
            only_reads = only_reads and command.only_reads
            if isinstance(command, _WITH_LARGE_REPLIES):
                wanted_room += room_for(command, self._gate.largest)
        if wanted_room:
            await visit.hold(min(wanted_room, cmd.MAX_BYTES))
        room = cmd.MAX_BYTES
        answers: list[Answer] = []
        for part in parts:
            if only_reads:
                visit.check()
            if not part.large_count:
                answers += await self._execute(part, visit, in_order=not only_reads)
            elif room > 0:
                share = room // part.large_count
                bounded = part._replace(sent=[_with_max_bytes(sent, share) for sent in part.sent])
                replies = await self._execute(bounded, visit, in_order=not only_reads)
                answers += replies
                if part is not parts[-1]:  # what is left is for those behind it
                    for reply in replies:
                        room -= len(_encode(reply)) if isinstance(reply, Reply) else 0
            else:
                answers += await self._execute_without_room(part, visit, in_order=not only_reads)
        return answers

    async def _execute_without_room(
        self, part: BatchPart, visit: Visit, *, in_order: bool
    ) -> list[Answer]:
        """Execute only commands whose replies are small; return an answer for each command."""
        is_large = [isinstance(sent.command, _WITH_LARGE_REPLIES) for sent in part.sent]
        small = [sent for sent, large in zip(part.sent, is_large, strict=True) if not large]
        replies = iter(await self._execute(BatchPart(small), visit, in_order=in_order))
        now = self._clock.now()
        return [
            answer_without_room(sent.command, now) if large else next(replies)
            for sent, large in zip(part.sent, is_large, strict=True)
        ]

    async def _execute(self, part: BatchPart, visit: Visit, *, in_order: bool) -> list[Answer]:
        """Execute commands at once; return a reply or an error for each.

        Args:
            part: the commands.
            visit: the request.
            in_order: whether the lane executes them in their order, see `Lane.acall`.
        """
        if part.slow:
            (sent,) = part.sent
            return [await self._slow_read(sent.command, visit)]
        count = len(part.sent)
        while self._under_way + count > MOST_UNDER_WAY:
            self._fewer_under_way.clear()
            await self._fewer_under_way.wait()
        self._under_way += count
        call = self._gate.lane.acall
        try:
            if count == 1:  # without a task of its own
                ((command, identity),) = part.sent
                try:
                    return [await call(command, self, identity=identity, in_order=in_order)]
                except Exception as error:  # noqa: BLE001  (as `gather` returns it)
                    return [error]
            return await asyncio.gather(
                *[
                    call(command, self, identity=identity, in_order=in_order)
                    for command, identity in part.sent
                ],
                return_exceptions=True,
            )
        finally:
            self._under_way -= count
            self._fewer_under_way.set()

    async def _slow_read(self, command: cmd.Command, visit: Visit) -> Answer:
        """Execute a slow read; return its reply or its error.

        A caller with too many of them gets `StoreBusy` for this command; the rest of the batch
        goes on.
        """
        try:
            with visit.slowly():
                return await self._gate.slow_reads.read(command, self)
        except Problem as problem:
            return StoreBusy(str(problem))
        except Exception as error:  # noqa: BLE001  (as `_execute` returns it)
            return error


def _with_max_bytes(sent: Sent, share: int) -> Sent:
    """Return a command whose reply takes at most `share` bytes, or one message of any size."""
    command = sent.command
    if isinstance(command, _WITH_MAX_BYTES) and command.max_bytes > share:
        return Sent(msgspec.structs.replace(command, max_bytes=share), sent.identity)
    return sent


def answer_without_room(command: cmd.Command, now: int) -> Answer:
    """Return the answer to a command that was not executed: the caller asks again."""
    match command:
        case cmd.Find():
            return Found([])
        case cmd.Scan():
            return Page([], command.cursor or BEGIN)
        case cmd.ListEnded():
            return EndedPage([], command.cursor or str(EndPosition()))
        case cmd.Claim():
            return Claimed([], 0, now, 0)
    return StoreBusy("the replies of this batch are too large together; ask again")
