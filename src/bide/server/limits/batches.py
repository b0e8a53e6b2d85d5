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
from bide.model import commands as cmd
from bide.model.command_identity import Identity
from bide.model.errors import BideError, StoreBusy
from bide.model.replies import Claimed, Found, Page, Reply
from bide.server.limits.gate import Gate, Visit
from bide.server.limits.reply_budget import room_for
from bide.server.limits.slow_reads import is_slow
from bide.server.problem import Problem

MOST_UNDER_WAY = 5_000
"""Commands of batches that may be under way. The lane accepts twice as many without delay, so the
commands of one batch keep their order."""

AT_ONCE = 16
"""How many commands with large replies are executed at once: each may return one message of any
size."""

_LARGE = (cmd.Find, cmd.Scan, cmd.Claim, cmd.Explain, cmd.ForecastCommand, cmd.History, cmd.Queues)

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
        self._less = asyncio.Event()
        """Set when fewer commands are under way."""

    async def execute(self, batch: Sequence[Sent], visit: Visit) -> list[Answer]:
        """Execute commands in order; return a reply or an error for each.

        All replies share the room of one reply, `MAX_BYTES`. When it is used up, reading commands
        are not executed: `Find` is answered without messages, `Scan` with its own cursor, and
        `Claim` with a wait of 0. The caller asks again. If the client goes, the rest of a batch
        that only reads is not executed.

        Args:
            batch: the commands.
            visit: the request.

        Raises:
            Problem: there is no room for the replies.
            ClientGone: the client has gone.
        """
        wanted, only_reads = 0, True
        for sent in batch:
            wanted += room_for(sent.command, self._gate.largest)
            only_reads = only_reads and sent.command.only_reads
        if wanted:
            await visit.hold(min(wanted, cmd.MAX_BYTES))
        room = cmd.MAX_BYTES
        answers: list[Answer] = []
        for part in parts_of(batch):
            if only_reads:
                visit.check()
            if not part.large:
                answers += await self._execute(part, visit, in_order=not only_reads)
            elif room > 0:
                share = room // part.large
                bounded = part._replace(sent=[_bounded(sent, share) for sent in part.sent])
                replies = await self._execute(bounded, visit, in_order=not only_reads)
                room -= sum(len(_encode(reply)) for reply in replies if isinstance(reply, Reply))
                answers += replies
            else:
                small = [sent for sent in part.sent if not isinstance(sent.command, _LARGE)]
                done = iter(await self._execute(BatchPart(small), visit, in_order=not only_reads))
                answers += [
                    _put_off(sent.command, self._clock.now())
                    if isinstance(sent.command, _LARGE)
                    else next(done)
                    for sent in part.sent
                ]
        return answers

    async def _execute(self, part: BatchPart, visit: Visit, *, in_order: bool) -> list[Answer]:
        """Execute commands at once; return a reply or an error for each."""
        if part.slow:
            return [await self._slow_read(part.sent[0].command, visit)]
        count = len(part.sent)
        while self._under_way + count > MOST_UNDER_WAY:
            self._less.clear()
            await self._less.wait()
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
            self._less.set()

    async def _slow_read(self, command: cmd.Command, visit: Visit) -> Answer:
        """Execute a slow read; return its reply or its error."""
        try:
            with visit.slowly():
                return await self._gate.slow_reads.read(command, self)
        except Problem as problem:
            return StoreBusy(str(problem))
        except BideError as error:
            return error


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
