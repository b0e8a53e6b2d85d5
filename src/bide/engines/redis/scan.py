"""Scan: pages of messages, of each state in rank order over all shards."""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from bide.engines.cursor import BEGIN, phases_of
from bide.engines.redis.calls import SLICE, Call, Round, Step, raised
from bide.engines.redis.layout import ORDER, as_message
from bide.model.commands import Scan, Where
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.replies import Page

_ORDERS = rf"(?:[0-9a-f]{{{ORDER}}}(?:-[0-9a-f]{{{ORDER}}})*)?"
_CURSOR = re.compile(rf"([0-9])\.([0-9]{{1,20}})\.({_ORDERS})\.([0-9]{{1,3}})")


class _Place(NamedTuple):
    """Where a page begins: behind a message, or behind what HSCAN has returned."""

    phase: int = 0
    rank: int = 0
    """Of all messages: the cursor of HSCAN."""
    order: str = ""
    """Of all messages: hashes of the ids that were returned of the first bucket, joined by -."""
    shard: int = 0


def _stretches(command: Scan) -> list[str]:
    """Return of which stretches a scan is made: see lua/scan.lua."""
    if command.state is None and command.where is not None and command.where.group is not None:
        return ["group"]
    parts: dict[bool | None, str] = {True: "due", False: "waiting"}  # of what is delayed
    return [parts.get(phase.due, phase.state or "all") for phase in phases_of(command)]


def check_cursor(command: Scan) -> _Place:
    """Return where a scan goes on.

    Raises:
        InvalidArgument: no scan made this cursor.
    """
    if command.cursor in (None, BEGIN):
        return _Place()
    found = _CURSOR.fullmatch(command.cursor or "")
    if found is not None:
        place = _Place(int(found[1]), int(found[2]), found[3], int(found[4]))
        phases = _stretches(command)[place.phase : place.phase + 1]
        sound = len(place.order) == ORDER or not (place.rank or place.order)
        if phases and (sound or phases[0] == "all"):
            return place
    raise InvalidArgument(f"cursor={command.cursor!r} comes from no scan; begin without one")


def scan(command: Scan, shards: int) -> Step:
    """Look at a page of messages."""
    phases = _stretches(command)
    place = check_cursor(command)
    messages: list[Message] = []
    room = command.max_bytes
    while place.phase < len(phases):
        one_by_one = phases[place.phase] in ("all", "group")  # else all shards, in rank order
        asked = [place.shard] if one_by_one else range(shards)
        limit = command.limit - len(messages)
        entries, behind = yield from _ask(command, place, asked, shards, limit, room)
        for at, message, size in entries:
            if messages and (size > room or len(messages) == command.limit):
                return [Page(messages, ".".join(map(str, place)))]
            messages.append(message)
            room -= size
            place = at
        if behind is not None:
            place = behind
        elif one_by_one and place.shard + 1 < shards:
            place = _Place(place.phase, shard=place.shard + 1)
        else:
            place = _Place(place.phase + 1)
        if place.phase < len(phases) and messages and (room <= 0 or limit <= len(entries)):
            return [Page(messages, ".".join(map(str, place)))]
    return [Page(messages, None)]


def _ask(
    command: Scan, place: _Place, asked: Sequence[int], shards: int, limit: int, room: int
) -> Round:
    """Ask shards which messages follow a place.

    Returns:
        Messages in their order, each with its place and size, as far as no shard can have others
        in between; and behind which place to go on, `None` if nothing is there.
    """
    phase, where = _stretches(command)[place.phase], command.where or Where()
    of = len(asked)
    most = min(limit if of == 1 else limit // of * 5 // 4 + 4, SLICE)
    head = phase, where.after, where.before, where.group, most, max(room, 1)
    prefix = command.prefix or ""
    answers = yield [
        Call("scan", command.queue, (*head, *_mark(place, shard), prefix), shard, shards)
        for shard in asked
    ]
    entries: list[tuple[_Place, Message, int]] = []
    ends: list[_Place] = []
    for shard, (head, *listed) in zip(asked, raised(answers), strict=True):
        now, _change, end, ranks = head
        if end:
            ends.append(_Place(place.phase, int(end[0]), end[1], shard))
        for at, id, record, lease in zip(ranks, *listed, strict=True):
            name, ready = id.decode(), phase == "ready"
            message = as_message(command.queue, name, record, now, ready=ready, lease=lease)
            rank, order = at.split()
            mine = _Place(place.phase, int(rank), order, shard)
            entries.append((mine, message, len(record) + len(id)))
    entries.sort(key=itemgetter(0))
    behind = min(ends, default=None)
    if behind is not None:
        entries = [entry for entry in entries if entry[0] <= behind]
    return entries, behind


def _mark(after: _Place, shard: int) -> tuple[str, str]:
    """Return behind which rank and order a shard goes on.

    In shards behind that of the place, a message of the same rank and order is next.
    """
    order = after.order
    if order and shard > after.shard:
        order = f"{int(order, 16) - 1:0{ORDER}x}"  # that of 0 begins with -, which is before digits
    return str(after.rank), order
