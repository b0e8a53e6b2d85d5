"""Scan over all shards: pages in one order, merged from the shards' own."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from bide.engines.pages import PHASES, Budget, Phase, cursor_after, position
from bide.engines.redis.keys import SHARDS
from bide.engines.redis.records import SEQ
from bide.engines.redis.shards.made import Made
from bide.engines.redis.shards.rounds import Round, ask
from bide.engines.redis.verbs.job import Call, Job, decode
from bide.engines.redis.verbs.look import scan_args, scanned
from bide.model.commands import Scan
from bide.model.message import Message, size_of
from bide.model.rank import delayed_rank, ready_rank
from bide.model.replies import Page

__all__ = ["scan_all"]

_Place = tuple[int, int, int]
"""Rank, number and shard of a message: their order is that of the scan."""


class _Stream:
    """What one shard tells of one phase."""

    def __init__(self, phase: Phase, shard: int, after: _Place) -> None:
        self._phase = phase
        self._shard = shard
        rank, number, of = after
        if rank < 0:
            self.place = "", ""
        else:  # in the shards behind that of the place, the number itself is still to come
            self.place = str(rank), f"{max(number - (shard > of), 0):0{SEQ}x}"
        self.ahead: list[tuple[_Place, Message]] = []
        self.ended = False

    def fill(self, queue: str, answer: Any) -> None:
        """Take in what the script answered."""
        text, *listed = answer
        now, place, _ = decode(text)
        messages = scanned(queue, now, self._phase, listed)
        for message, record in zip(messages, listed[1], strict=True):
            where = self._rank(message), int(record[:SEQ], 16), self._shard
            self.ahead.append((where, message))
        self.ended = place is None
        self.place = place or self.place

    def _rank(self, message: Message) -> int:
        match self._phase.state:
            case None:
                return 0
            case "delayed":
                return delayed_rank(message.due, message.priority)
            case "ready":
                return ready_rank(message.due, message.priority)
            case "leased":
                return message.until or 0
            case _:
                return message.ended or 0


def scan_all(command: Scan, made: Made) -> Job:
    """Look at a page of messages of all shards."""
    phases = PHASES[command.state]
    first, (rank, number) = position(command.cursor)
    after = rank, number // SHARDS, number % SHARDS
    messages: list[Message] = []
    budget = Budget(command.max_bytes)
    for index in range(first, len(phases)):
        start = after if index == first else (-1, -1, 0)
        moved = index == first and after[0] >= 0
        streams = [_Stream(phases[index], shard, start) for shard in range(made.count)]
        while len(messages) < command.limit:
            yield from _fill(command, phases[index], streams, made, command.limit - len(messages))
            for place, message in islice(_next(streams), command.limit - len(messages)):
                if not budget.takes(size_of(message)):
                    rank, number, shard = after if moved else (0, 0, 0)
                    return [Page(messages, cursor_after(index, rank, number * SHARDS + shard))]
                moved = True
                messages.append(message)
                after = place
            if all(stream.ended and not stream.ahead for stream in streams):
                break
        else:
            rank, number, shard = after if messages else (0, 0, 0)
            return [Page(messages, cursor_after(index, rank, number * SHARDS + shard))]
        if len(messages) == command.limit and index + 1 < len(phases):
            return [Page(messages, cursor_after(index + 1, 0, 0))]
    return [Page(messages, None)]


def _fill(
    command: Scan, phase: Phase, streams: list[_Stream], made: Made, left: int
) -> Round[None]:
    """Ask all shards of which nothing is known to come, until each has told of something."""
    share = left // made.count * 5 // 4 + 4
    room = command.max_bytes // made.count
    while True:
        dry = [s for s, stream in enumerate(streams) if not (stream.ahead or stream.ended)]
        if not dry:
            return
        calls = {
            s: Call(
                "scan",
                command.queue,
                (*scan_args(command, phase, share, *streams[s].place), room, 1),
            )
            for s in dry
        }
        for s, answer in (yield from ask(calls, made.count)).items():
            streams[s].fill(command.queue, answer)


def _next(streams: list[_Stream]) -> Iterator[tuple[_Place, Message]]:
    """Yield what comes next as far as that is sure, and take it out."""
    reach = min((stream.ahead[-1][0] for stream in streams if not stream.ended), default=None)
    found = sorted(
        ((entry, stream) for stream in streams for entry in stream.ahead),
        key=lambda pair: pair[0][0],
    )
    for entry, stream in found:
        if reach is not None and entry[0] > reach:
            return
        stream.ahead.pop(0)
        yield entry
