"""Scan: pages of messages, of each state in rank order over all shards."""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bide.engines.cursor import BEGIN
from bide.engines.redis.calls import SLICE, Call, Round, Step, raised
from bide.engines.redis.records import ORDER, as_message
from bide.model.commands import Scan, Where
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.replies import Page

_SETS = ("ready", "delayed", "leased", "dead", "acked", "expired")
_PHASES: dict[str, tuple[str, ...]] = {
    "next": ("ready", "delayed"),
    "ready": ("ready", "due"),
    "delayed": ("waiting",),
    **{state: (state,) for state in ("leased", "dead", "acked", "expired")},
}
"""Of which stretches a scan of a state is made: see lua/_ranges.lua."""

_ORDERS = rf"(?:[0-9a-f]{{{ORDER}}}(?:-[0-9a-f]{{{ORDER}}})*)?"
_CURSOR = re.compile(rf"([0-9])\.([0-9]{{0,20}})\.({_ORDERS})\.([0-9]{{1,3}})")


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


def _phases(command: Scan) -> tuple[str, ...]:
    """Return the phases of a scan.

    Without a state all records are walked, a group, or where due is bounded, one set after the
    other: in the order in which claims move messages, so that none slips through.
    """
    if command.state is not None:
        return _PHASES[command.state]
    where = command.where or Where()
    if where.group is not None:
        return ("group",)
    if where.after is None and where.before is None:
        return ("all",)
    return _SETS


def check_cursor(command: Scan) -> _Place:
    """Return where a scan goes on.

    Raises:
        InvalidArgument: no scan made this cursor.
    """
    if command.cursor in (None, BEGIN):
        return _Place()
    found = _CURSOR.fullmatch(command.cursor or "")
    if found is not None:
        place = _Place(int(found[1]), found[2], found[3], int(found[4]))
        phases = _phases(command)[place.phase : place.phase + 1]
        one_order = len(place.order) == (ORDER if place.rank else 0)
        if phases and (one_order or phases[0] == "all"):
            return place
    raise InvalidArgument(f"cursor={command.cursor!r} comes from no scan; begin without one")


def scan(command: Scan, shards: int) -> Step:
    """Look at a page of messages."""
    phases = _phases(command)
    place = check_cursor(command)
    page = _Page(command, shards)
    while place.phase < len(phases):
        phase = phases[place.phase]
        ordered = shards > 1 and phase not in ("all", "group")
        behind = yield from (page.walk_ranks if ordered else page.walk_shards)(phase, place)
        place = behind or _Place(place.phase + 1)
        if place.phase < len(phases) and (behind is not None or page.full):
            return [Page(page.messages, ".".join(map(str, place)))]
    return [Page(page.messages, None)]


class _Entry(NamedTuple):
    """A message that a shard told of."""

    key: tuple[int, int, int]
    """Its place in the order of all shards: rank, order of putting, shard."""
    behind: _Place
    message: Message
    size: int


class _Stream:
    """What one shard tells of one phase."""

    def __init__(self, shard: int, after: _Place) -> None:
        self.shard = shard
        self.rank, self.order = after.rank, after.order
        if after.rank and shard != after.shard:
            # In the shards behind that of the place, its very order is still to come.
            number = max(int(after.order, 16) - (shard > after.shard), 0)
            self.order = f"{number:0{ORDER}x}"
        self.ahead: deque[_Entry] = deque()
        self.ended = False


class _Page:
    """A page that fills up."""

    def __init__(self, command: Scan, shards: int) -> None:
        self.messages: list[Message] = []
        self._command = command
        self._shards = shards
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

    def _add(self, entry: _Entry) -> None:
        self.messages.append(entry.message)
        self._room -= entry.size

    def walk_shards(self, phase: str, place: _Place) -> Round:
        """Add what one shard after the other has; return the place where there is no more room."""
        for shard in range(place.shard, self._shards):
            stream = _Stream(shard, place if shard == place.shard else _Place())
            while not stream.ended:
                if self.full:
                    return _Place(place.phase, stream.rank, stream.order, shard)
                left = self._command.limit - len(self.messages)
                begun = bool(self.messages)
                yield from self._ask([stream], phase, place.phase, left, may_be_empty=begun)
                for entry in stream.ahead:
                    self._add(entry)
                stream.ahead.clear()
            if self.full and shard + 1 < self._shards:
                return _Place(place.phase, shard=shard + 1)
        return None

    def walk_ranks(self, phase: str, place: _Place) -> Round:
        """Add what all shards have, in rank order; return the place where there is no more room."""
        streams = [_Stream(shard, place) for shard in range(self._shards)]
        after = place
        while any(stream.ahead or not stream.ended for stream in streams):
            if self.full:
                return after
            dry = [stream for stream in streams if not (stream.ahead or stream.ended)]
            if dry:
                share = (self._command.limit - len(self.messages)) // self._shards * 5 // 4 + 4
                yield from self._ask(dry, phase, place.phase, share)
                continue
            first = min((stream for stream in streams if stream.ahead), key=lambda s: s.ahead[0])
            entry = first.ahead[0]
            if self.messages and entry.size > self._room:
                return after
            self._add(first.ahead.popleft())
            after = entry.behind
        return None

    def _ask(
        self,
        streams: Sequence[_Stream],
        phase: str,
        number: int,
        limit: int,
        *,
        may_be_empty: bool = False,
    ) -> Round:
        """Ask shards what comes next."""
        command, where = self._command, self._command.where or Where()
        bounds = ["" if moment is None else moment for moment in (where.after, where.before)]
        room = f"{'-' if may_be_empty else ''}{max(self._room, 1)}"
        head = (phase, *bounds, where.group or "", max(1, min(limit, SLICE)), room)
        prefix = command.prefix or ""
        answers = yield [
            Call(
                "scan", command.queue, (*head, each.rank, each.order, prefix), each.shard,
                self._shards,
            )
            for each in streams
        ]  # fmt: skip
        for stream, (first, place, full, *listed) in zip(streams, raised(answers), strict=True):
            now = first[0]
            self._out_of_room = may_be_empty and full == b"1"
            stream.ended = not place
            if place:
                stream.rank, stream.order = (text.decode() for text in place)
            for id, record, rank, lease in zip(*listed, strict=True):
                message = as_message(
                    command.queue,
                    id.decode(),
                    record,
                    now,
                    ready=phase == "ready",
                    lease=lease,
                )
                rank, _, order = rank.partition(b" ")
                order = order or record[:ORDER]
                if phase in ("all", "group"):  # nothing goes by it
                    order = b"0"
                behind = _Place(number, rank.decode(), order.decode(), stream.shard)
                size = len(record) + len(id)
                stream.ahead.append(_Entry(behind.key, behind, message, size))
