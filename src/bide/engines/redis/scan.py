"""Scan: pages of messages, of each state in rank order over all shards."""

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from bide.engines.cursor import BEGIN, Phase, goes_by_set, phases_of
from bide.engines.redis.calls import Round, ScriptCall, Step, without_errors
from bide.engines.redis.constants import SLICE
from bide.engines.redis.layout import ORDER, as_message
from bide.model.commands import Scan, Where
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_RETURNED
from bide.model.message import Message
from bide.model.replies import Page

_ORDERS = rf"(?:[0-9a-f]{{{ORDER}}}(?:-[0-9a-f]{{{ORDER}}})*)?"
_SINCE = r"(?:[0-9]{1,15}-){0,63}[0-9]{1,15}"
_CURSOR = re.compile(
    rf"(?P<phase>[0-9])\.(?P<rank>[0-9]{{1,20}})\.(?P<order>{_ORDERS})\.(?P<shard>[0-9]{{1,3}})"
    rf"(?:~(?P<since>{_SINCE})~(?P<returned>[0-9]{{1,9}}))?"
)
"""A `_Place` as text."""

_ONE_BY_ONE = ("all", "group", "rest")
"""The phases in which one shard is read after another: these messages have no common order."""


class _Place(NamedTuple):
    """Where a page begins: behind a message, or behind what HSCAN has returned."""

    phase: int = 0
    """Its number in `_phase_names`."""
    rank: int = 0
    """Of all messages: the cursor of HSCAN."""
    order: str = ""
    """Of all messages: hashes of the ids that were returned of the first bucket, joined by -."""
    shard: int = 0
    since: str = ""
    """Of a scan that goes by set: the number of the last change of each shard before it began,
    joined by -."""
    returned: int = 0
    """How many messages it has yielded that were returned since."""

    def __str__(self) -> str:
        """Return the place as a cursor."""
        since = f"~{self.since}~{self.returned}" if self.since else ""
        return f"{self.phase}.{self.rank}.{self.order}.{self.shard}{since}"

    def next_phase(self) -> "_Place":
        """Return where the next phase begins."""
        return _Place(self.phase + 1, since=self.since, returned=self.returned)

    def last_change_before(self, shard: int) -> int:
        """Return the number of the last change of a shard before the scan began; 0: not known."""
        numbers = self.since.split("-")
        return int(numbers[shard] or 0) if shard < len(numbers) else 0


def _phase_names(command: Scan) -> list[str]:
    """Return what a scan reads in turn, in the words of lua/scan.lua."""
    if command.state is None and command.where is not None and command.where.group is not None:
        return ["group"]
    return [_phase_name(phase) for phase in phases_of(command)]


def _phase_name(phase: Phase) -> str:
    """Return the word of lua/scan.lua for a phase."""
    if phase.due is None:
        return phase.state or "all"
    return "due" if phase.due else "waiting"  # one of the two parts of the delayed messages


def check_cursor(command: Scan) -> _Place:
    """Return where a scan goes on.

    Raises:
        InvalidArgument: no scan made this cursor.
    """
    if command.cursor in (None, BEGIN):
        return _Place()
    match = _CURSOR.fullmatch(command.cursor or "")
    if match is not None:
        place = _Place(
            phase=int(match["phase"]),
            rank=int(match["rank"]),
            order=match["order"],
            shard=int(match["shard"]),
            since=match["since"] or "",
            returned=int(match["returned"] or 0),
        )
        names = _phase_names(command)
        if place.phase < len(names) and place.rank < 1 << 64:  # HSCAN takes no larger cursor
            is_at_beginning = not (place.rank or place.order)
            has_one_order = len(place.order) == ORDER
            if has_one_order or is_at_beginning or names[place.phase] in ("all", "rest"):
                return place
    raise InvalidArgument(f"cursor={command.cursor!r} is not from a scan; begin without one")


class _Entry(NamedTuple):
    """A message that a shard has returned."""

    place: _Place
    message: Message
    size: int
    """Bytes of its id and record."""


class _Entries(NamedTuple):
    """What shards have returned behind a place."""

    entries: list[_Entry]
    """In order, as far as no shard can have others in between."""
    behind: _Place | None
    """Behind which place to go on; `None`: these shards have no more in this phase."""
    place: _Place
    """The place that was asked for, with the numbers of the last changes."""


def scan(command: Scan, shards: int) -> Step:
    """Look at a page of messages."""
    names = _phase_names(command)
    place = check_cursor(command)
    messages: list[Message] = []
    room = command.max_bytes
    while place.phase < len(names):
        name = names[place.phase]
        if name == "returned" and place.returned > MAX_RETURNED:
            place = place.next_phase()  # "rest" reads everything then
            continue
        is_one_by_one = name in _ONE_BY_ONE  # else all shards, in rank order
        asked = [place.shard] if is_one_by_one else range(shards)
        limit = command.limit - len(messages)
        entries, behind, place = yield from _ask(
            command, place, asked, shards=shards, limit=limit, room=room
        )
        for entry in entries:
            if messages and (entry.size > room or len(messages) == command.limit):
                return [Page(messages, str(place))]
            messages.append(entry.message)
            room -= entry.size
            returned = place.returned + 1 if name == "returned" else place.returned
            place = entry.place._replace(returned=returned)
        if behind is not None:
            place = behind._replace(returned=place.returned)
        elif is_one_by_one and place.shard + 1 < shards:
            place = place._replace(rank=0, order="", shard=place.shard + 1)
        else:
            place = place.next_phase()
        is_full = room <= 0 or limit <= len(entries)
        if place.phase < len(names) and messages and is_full:
            return [Page(messages, str(place))]
    return [Page(messages, None)]


def _ask(
    command: Scan, place: _Place, asked: Sequence[int], *, shards: int, limit: int, room: int
) -> Round:
    """Ask shards which messages follow a place; return `_Entries`.

    Args:
        command: the scan.
        place: behind which they are.
        asked: the numbers of the shards to ask.
        shards: of how many the queue is made.
        limit: how many messages are wanted.
        room: how many bytes they may have.
    """
    name, where = _phase_names(command)[place.phase], command.where or Where()
    if name == "rest" and place.returned > MAX_RETURNED:
        name = "all"  # some returns may be remembered no more
    # Mostly, a shard has not much more than its part of the first ones.
    most = limit if len(asked) == 1 else limit // len(asked) * 5 // 4 + 4
    rule = name, where.after, where.before, where.group, min(most, SLICE), max(room, 1)
    prefix = command.prefix or ""
    answers = yield [
        ScriptCall(
            "scan",
            command.queue,
            (*rule, *_behind(place, shard), prefix, place.last_change_before(shard)),
            shard,
            shards,
        )
        for shard in asked
    ]
    pages = without_errors(answers)
    if goes_by_set(command) and not place.since:
        changes = [str(abs(change)) for (_now, change, *_), *_ in pages]
        place = place._replace(since="-".join(changes))
    entries: list[_Entry] = []
    ends: list[_Place] = []  # of shards that have more
    for shard, (head, ids, records, leases) in zip(asked, pages, strict=True):
        now, _change, end, ranks_and_orders = head
        if end:
            end_rank, end_order = end
            ends.append(place._replace(rank=int(end_rank), order=end_order, shard=shard))
        for rank_and_order, id, record, lease in zip(
            ranks_and_orders, ids, records, leases, strict=True
        ):
            message = as_message(
                command.queue, id.decode(), record, now, ready=name == "ready", lease=lease
            )
            rank, order = rank_and_order.split()
            at_message = place._replace(rank=int(rank), order=order, shard=shard)
            entries.append(_Entry(at_message, message, len(record) + len(id)))
    entries.sort(key=attrgetter("place"))
    behind = min(ends, default=None)
    if behind is not None:
        entries = [entry for entry in entries if entry.place <= behind]
    return _Entries(entries, behind, place)


def _behind(place: _Place, shard: int) -> tuple[str, str]:
    """Return the rank and the order behind which a shard looks for what follows a place.

    Each shard numbers its own messages, so several shards may have the same rank and order. Then
    the lower shard comes first. A higher shard than that of the place has its message of this rank
    and order still to come, so it looks behind the order before.
    """
    order = place.order
    if order and shard > place.shard:
        # Before order 0 is a number that begins with -, which sorts before all digits.
        order = f"{int(order, 16) - 1:0{ORDER}x}"
    return str(place.rank), order
