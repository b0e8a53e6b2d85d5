"""Scan: pages of messages, of each state in rank order over all shards."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bide.engines.cursor import BEGIN
from bide.engines.redis.calls import SLICE, Call, Job, Outcome, Send
from bide.engines.redis.look import held_by
from bide.engines.redis.records import ORDER, as_message
from bide.model.commands import Scan, Where
from bide.model.errors import InvalidArgument, StoreError
from bide.model.message import Message
from bide.model.rank import delayed_rank, ready_rank
from bide.model.replies import Page

__all__ = ["check_cursor", "scan"]


class _Phase(NamedTuple):
    """One stretch of a scan."""

    which: str
    due: str = ""
    """Of delayed messages: only those that are due, or are waiting."""


_SETS = ("ready", "delayed", "leased", "dead", "acked", "expired")
_PHASES: dict[str, tuple[_Phase, ...]] = {
    "next": (_Phase("ready"), _Phase("delayed")),
    "ready": (_Phase("ready"), _Phase("delayed", "due")),
    "delayed": (_Phase("delayed", "waiting"),),
    **{state: (_Phase(state),) for state in ("leased", "dead", "acked", "expired")},
}


class _Place(NamedTuple):
    """Where a page begins: behind a message, or behind what HSCAN told."""

    phase: int = 0
    rank: str = ""
    """Of all messages: the cursor of HSCAN."""
    order: str = ""
    """Of all messages: the orders that were told of the first bucket, joined by -."""
    shard: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        return (int(self.rank), int(self.order, 16), self.shard) if self.rank else (-1, -1, -1)


def _phases(command: Scan) -> tuple[_Phase, ...]:
    """Return the phases of a scan.

    Without a state all records are walked, a group, or where due is bounded, one set after the
    other: in the order in which claims move messages, so that none slips through.
    """
    if command.state is not None:
        return _PHASES[command.state]
    where = command.where or Where()
    if where.group is not None:
        return (_Phase("group"),)
    if where.after is None and where.before is None:
        return (_Phase("all"),)
    return tuple(_Phase(which) for which in _SETS)


def check_cursor(command: Scan) -> _Place:
    """Return where a scan goes on.

    Raises:
        InvalidArgument: no scan made this cursor.
    """
    if command.cursor in (None, BEGIN):
        return _Place()
    parts = str(command.cursor).split(".")
    wrong = len(parts) != 4 or not all(part.isascii() and len(part) < 32_768 for part in parts)
    if not wrong:
        phase, rank, order, shard = parts
        wrong = not (phase.isdecimal() and shard.isdecimal() and len(phase + shard) < 6)
        wrong = wrong or not (rank == "" or (rank.isdecimal() and len(rank) < 21))
        wrong = wrong or not all(
            len(each) == ORDER and _is_hex(each) for each in order.split("-") if order
        )
        if not wrong and int(phase) < len(_phases(command)):
            return _Place(int(phase), rank, order, int(shard))
    raise InvalidArgument(f"cursor={command.cursor!r} comes from no scan; begin without one")


def _is_hex(text: str) -> bool:
    return set(text) <= set("0123456789abcdef")


def scan(command: Scan, shards: int) -> Job:
    """Look at a page of messages."""
    phases = _phases(command)
    start = check_cursor(command)

    def run(send: Send) -> Outcome:
        page = _Page(command, shards, send)
        place = start
        try:
            while place.phase < len(phases):
                phase = phases[place.phase]
                ordered = shards > 1 and phase.which not in ("all", "group")
                walk = page.walk_ranks if ordered else page.walk_shards
                behind = walk(phase, place)
                if behind is not None:
                    return Page(page.messages, ".".join(map(str, behind)))
                place = _Place(place.phase + 1)
                if page.full and place.phase < len(phases):
                    return Page(page.messages, ".".join(map(str, place)))
        except StoreError as error:
            return error
        return Page(page.messages, None)

    return run


class _Stream:
    """What one shard tells of one phase."""

    def __init__(self, shard: int, after: _Place) -> None:
        self.shard = shard
        self.rank, self.order = after.rank, after.order
        if after.rank and shard != after.shard:
            # In the shards behind that of the place, its very order is still to come.
            number = max(int(after.order, 16) - (shard > after.shard), 0)
            self.order = f"{number:0{ORDER}x}"
        self.ahead: list[tuple[tuple[int, int, int], _Place, Message, int]] = []
        self.ended = False


class _Page:
    """A page that fills up."""

    def __init__(self, command: Scan, shards: int, send: Send) -> None:
        self.messages: list[Message] = []
        self._command = command
        self._shards = shards
        self._send = send
        self._room = command.max_bytes
        self._out_of_room = False

    @property
    def full(self) -> bool:
        """Whether there is room for nothing more."""
        return (
            self._out_of_room
            or len(self.messages) >= self._command.limit
            or (self._room <= 0 and bool(self.messages))
        )

    def walk_shards(self, phase: _Phase, place: _Place) -> _Place | None:
        """Add what one shard after the other has; return the place where there is no more room."""
        for shard in range(place.shard, self._shards):
            stream = _Stream(shard, place if shard == place.shard else _Place())
            while not stream.ended:
                if self.full:
                    return _Place(place.phase, stream.rank, stream.order, shard)
                left = self._command.limit - len(self.messages)
                (told,) = self._ask([stream], phase, left, may_be_empty=bool(self.messages))
                for message, _, size in told:
                    self.messages.append(message)
                    self._room -= size
            if self.full and shard + 1 < self._shards:
                return _Place(place.phase, shard=shard + 1)
        return None

    def walk_ranks(self, phase: _Phase, place: _Place) -> _Place | None:
        """Add what all shards have, in rank order; return the place where there is no more room."""
        streams = [_Stream(shard, place) for shard in range(self._shards)]
        after = place
        while True:
            self._fill(phase, streams, place.phase)
            for _, behind, message, size in _next(streams):
                if self.full or (self.messages and size > self._room):
                    return after
                self.messages.append(message)
                self._room -= size
                after = behind
                streams[behind.shard].ahead.pop(0)
            if all(stream.ended and not stream.ahead for stream in streams):
                return None
            if self.full:
                return after

    def _fill(self, phase: _Phase, streams: list[_Stream], number: int) -> None:
        """Ask all shards of which nothing is known to come, until each has told of something."""
        left = self._command.limit - len(self.messages)
        share = left if self._shards == 1 else left // self._shards * 5 // 4 + 4
        while dry := [stream for stream in streams if not (stream.ahead or stream.ended)]:
            for stream, told in zip(dry, self._ask(dry, phase, share), strict=True):
                for message, order, size in told:
                    behind = _Place(number, str(_rank(phase, message)), order, stream.shard)
                    stream.ahead.append((behind.key, behind, message, size))

    def _ask(
        self,
        streams: Sequence[_Stream],
        phase: _Phase,
        limit: int,
        *,
        may_be_empty: bool = False,
    ) -> Iterator[list[tuple[Message, str, int]]]:
        """Yield what each shard tells next: messages, their orders and sizes."""
        command, where = self._command, self._command.where or Where()
        bounds = ["" if moment is None else moment for moment in (where.after, where.before)]
        room = f"{'-' if may_be_empty else ''}{max(self._room, 1)}"
        calls = [
            Call(
                "scan", command.queue,
                (phase.which, phase.due, *bounds, where.group or "", max(1, min(limit, SLICE)),
                 room, stream.rank, stream.order),
                stream.shard, self._shards,
            )
            for stream in streams
        ]  # fmt: skip
        for stream, answer in zip(streams, self._send(calls), strict=True):
            if isinstance(answer, StoreError):
                raise answer
            now, place, full, *listed = answer
            self._out_of_room = may_be_empty and full == b"1"
            stream.ended = not place
            if place:
                stream.rank, stream.order = (text.decode() for text in place)
            told = []
            for id, record, lease in zip(*listed, strict=True):
                holder, until = held_by(lease)
                message = as_message(
                    command.queue, id.decode(), record, int(now),
                    ready=phase.which == "ready", holder=holder, until=until,
                )  # fmt: skip
                told.append((message, record[:ORDER].decode(), len(record) + len(id)))
            yield told


def _rank(phase: _Phase, message: Message) -> int:
    match phase.which:
        case "delayed":
            return delayed_rank(message.due, message.priority)
        case "ready":
            return ready_rank(message.due, message.priority)
        case "leased":
            return message.until or 0
        case "expired":
            return (message.ended or 0) + (1 << 42)
        case _:
            return message.ended or 0


def _next(streams: list[_Stream]) -> Iterator[tuple[tuple[int, int, int], _Place, Message, int]]:
    """Yield what comes next as far as that is sure."""
    reach = min((stream.ahead[-1][0] for stream in streams if not stream.ended), default=None)
    found = sorted((entry for stream in streams for entry in stream.ahead), key=lambda e: e[0])
    for entry in found:
        if reach is not None and entry[0] > reach:
            return
        yield entry
