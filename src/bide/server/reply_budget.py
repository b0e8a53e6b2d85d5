"""One budget of bytes for all replies of a batch.

A request of 1 KB may hold a thousand scans. Without a common budget each would answer with the most
that a single reply holds.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from bide.engines.cursor import BEGIN
from bide.model import commands as cmd
from bide.model.ended import size_of_end
from bide.model.errors import StoreBusy
from bide.model.message import size_of
from bide.model.replies import Claimed, Ends, Explained, Forecasted, Found, Names, Page, Reply
from bide.server.slow_reads import is_slow

AT_ONCE = 16
"""How many commands with large replies are carried out at once: each may answer with one message,
however large."""

_LARGE = (cmd.Find, cmd.Scan, cmd.Claim, cmd.Explain, cmd.Forecast, cmd.History, cmd.Queues)

_BOUNDED = (cmd.Find, cmd.Scan, cmd.Claim, cmd.History)

Answer = Reply | BaseException


async def within_budget(
    commands: Sequence[cmd.Command],
    execute: Callable[[Sequence[cmd.Command]], Awaitable[list[Answer]]],
    now: int,
) -> list[Answer]:
    """Carry out commands in order, and keep their replies within `MAX_BYTES` together.

    Once the budget is used up, a reading command is not carried out: `Find` is answered without
    messages, `Scan` with the cursor that it came with, and `Claim` with a wait of 0. The caller
    asks again.
    """
    room = cmd.MAX_BYTES
    answers: list[Answer] = []
    for part in _parts(commands):
        large = sum(isinstance(command, _LARGE) for command in part)
        if room <= 0 and large:
            asked = [command for command in part if not isinstance(command, _LARGE)]
            told = iter(await execute(asked))
            answers += [_put_off(c, now) if isinstance(c, _LARGE) else next(told) for c in part]
            continue
        share = room // large if large else 0
        told_all = await execute([_bounded(command, share) for command in part])
        room -= sum(map(_size, told_all))
        answers += told_all
    return answers


def _parts(commands: Sequence[cmd.Command]) -> Iterator[list[cmd.Command]]:
    """Yield what is carried out at once; a slow read alone."""
    part: list[cmd.Command] = []
    large = 0
    for command in commands:
        if is_slow(command):
            if part:
                yield part
            yield [command]
            part, large = [], 0
            continue
        if large == AT_ONCE and isinstance(command, _LARGE):
            yield part
            part, large = [], 0
        part.append(command)
        large += isinstance(command, _LARGE)
    if part:
        yield part


def _bounded(command: cmd.Command, share: int) -> cmd.Command:
    if isinstance(command, _BOUNDED) and command.max_bytes > share:
        return msgspec.structs.replace(command, max_bytes=share)
    return command


def _put_off(command: cmd.Command, now: int) -> Answer:
    match command:
        case cmd.Find():
            return Found([])
        case cmd.Scan():
            return Page([], command.cursor or BEGIN)
        case cmd.Claim():
            return Claimed([], 0, now, 0)
    return StoreBusy("the replies of this batch are too large together; ask again")


def _size(answer: Answer) -> int:
    if isinstance(answer, (Found, Page, Claimed)):
        return sum(size_of(message) for message in answer.messages if message is not None)
    if isinstance(answer, Ends):
        return sum(map(size_of_end, answer.ends))
    if isinstance(answer, Explained):
        return 0 if answer.failure is None else len(answer.failure.reason)
    if isinstance(answer, Names):
        return sum(map(len, answer.names))
    return 9 * len(answer.buckets) if isinstance(answer, Forecasted) else 0
