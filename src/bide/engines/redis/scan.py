"""Scan: pages of messages, of each state in rank order over all shards."""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bide.engines.cursor import BEGIN
from bide.engines.redis.calls import SLICE, Call, Round, Step, raised
from bide.engines.redis.layout import ORDER, as_message, blank
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
"""Of which stretches a scan of a state is made: see `ranges` in lua/_records.lua."""

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
        one_by_one = phase in ("all", "group")  # else all shards together, in rank order
        behind = yield from page.walk(phase, place, [place.shard] if one_by_one else range(shards))
        if behind is not None:
            place = behind
        elif one_by_one and place.shard + 1 < shards:
            place = _Place(place.phase, shard=place.shard + 1)
        else:
            place = _Place(place.phase + 1)
        if place.phase < len(phases) and (behind is not None or page.full):
            return [Page(page.messages, ".".join(map(str, place)))]
    return [Page(page.messages, None)]


class _Entry(NamedTuple):
    """A message that a shard told of."""

    key: tuple[int, str, int]
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

    @property
    def full(self) -> bool:
        """Whether there is room for nothing more."""
        left = self._command.limit - len(self.messages)
        return left <= 0 or (self._room <= 0 and bool(self.messages))

    def walk(self, phase: str, place: _Place, shards: Sequence[int]) -> Round:
        """Add what shards have, in rank order; return the place where there is no more room."""
        streams = [_Stream(shard, place) for shard in shards]
        while True:
            ahead = [stream.ahead for stream in streams if stream.ahead]
            dry = [stream for stream in streams if not (stream.ahead or stream.ended)]
            if not (ahead or dry):
                return None
            if self.full:
                return place
            if dry:
                yield from self._ask(dry, phase, place.phase, len(streams))
                continue
            first = min(ahead)
            if self.messages and first[0].size > self._room:
                return place
            _key, place, message, size = first.popleft()
            self.messages.append(message)
            self._room -= size

    def _ask(self, streams: Sequence[_Stream], phase: str, number: int, of: int) -> Round:
        """Ask shards what comes next; `of`: among how many it is sorted."""
        command, where = self._command, self._command.where or Where()
        bounds = blank(where.after), blank(where.before)
        left = command.limit - len(self.messages)
        limit = min(left if of == 1 else left // of * 5 // 4 + 4, SLICE)
        head = (phase, *bounds, where.group or "", limit, max(self._room, 1))
        prefix = command.prefix or ""
        answers = yield [
            Call(
                "scan", command.queue, (*head, each.rank, each.order, prefix), each.shard,
                self._shards,
            )
            for each in streams
        ]  # fmt: skip
        for stream, ((now, _change), end, *listed) in zip(streams, raised(answers), strict=True):
            stream.ended = not end
            if end:
                stream.rank, stream.order = (text.decode() for text in end)
            for id, record, place, lease in zip(*listed, strict=True):
                name = id.decode()
                ready = phase == "ready"
                message = as_message(command.queue, name, record, now, ready=ready, lease=lease)
                rank, _, order = place.decode().partition(" ")
                key = (int(rank), order, stream.shard)
                if phase in ("all", "group"):  # all that is told fits, and nothing is in order
                    rank, order = stream.rank, stream.order
                behind = _Place(number, rank, order, stream.shard)
                stream.ahead.append(_Entry(key, behind, message, len(record) + len(id)))
