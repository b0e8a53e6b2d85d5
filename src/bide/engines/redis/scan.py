"""Scan: pages of messages, of each state in rank order over all shards."""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from bide.engines.cursor import BEGIN, goes_by_set, phases_of
from bide.engines.redis.calls import Round, ScriptCall, Step, raised
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
    rf"([0-9])\.([0-9]{{1,20}})\.({_ORDERS})\.([0-9]{{1,3}})(?:~({_SINCE})~([0-9]{{1,9}}))?"
)

_ONE_BY_ONE = ("all", "group", "rest")
"""The stretches that are read of one shard after another."""


class _Place(NamedTuple):
    """Where a page begins: behind a message, or behind what HSCAN has returned."""

    phase: int = 0
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
        return ".".join(map(str, self[:4])) + since

    def next_phase(self) -> "_Place":
        """Return where the next stretch begins."""
        return _Place(self.phase + 1, since=self.since, returned=self.returned)

    def behind(self, shard: int) -> int:
        """Return the number of the last change of a shard before the scan began."""
        numbers = self.since.split("-")
        return int(numbers[shard] or 0) if shard < len(numbers) else 0


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
    match = _CURSOR.fullmatch(command.cursor or "")
    if match is not None:
        since, returned = match[5] or "", int(match[6] or 0)
        place = _Place(int(match[1]), int(match[2]), match[3], int(match[4]), since, returned)
        phases = _stretches(command)[place.phase : place.phase + 1]
        sound = len(place.order) == ORDER or not (place.rank or place.order)
        if phases and place.rank < 1 << 64 and (sound or phases[0] in ("all", "rest")):
            return place
    raise InvalidArgument(f"cursor={command.cursor!r} comes from no scan; begin without one")


def scan(command: Scan, shards: int) -> Step:
    """Look at a page of messages."""
    phases = _stretches(command)
    place = check_cursor(command)
    messages: list[Message] = []
    room = command.max_bytes
    while place.phase < len(phases):
        phase = phases[place.phase]
        if phase == "returned" and place.returned > MAX_RETURNED:
            place = place.next_phase()
            continue
        one_by_one = phase in _ONE_BY_ONE  # else all shards, in rank order
        asked = [place.shard] if one_by_one else range(shards)
        limit = command.limit - len(messages)
        entries, behind, place = yield from _ask(command, place, asked, shards, limit, room)
        for at, message, size in entries:
            if messages and (size > room or len(messages) == command.limit):
                return [Page(messages, str(place))]
            messages.append(message)
            room -= size
            place = at._replace(returned=place.returned + (phase == "returned"))
        if behind is not None:
            place = behind._replace(returned=place.returned)
        elif one_by_one and place.shard + 1 < shards:
            place = place._replace(rank=0, order="", shard=place.shard + 1)
        else:
            place = place.next_phase()
        if place.phase < len(phases) and messages and (room <= 0 or limit <= len(entries)):
            return [Page(messages, str(place))]
    return [Page(messages, None)]


def _ask(
    command: Scan, place: _Place, asked: Sequence[int], shards: int, limit: int, room: int
) -> Round:
    """Ask shards which messages follow a place.

    Returns:
        Messages in their order, each with its place and size, as far as no shard can have others
        in between; behind which place to go on, `None` if nothing is there; and the place, which
        knows by then what the last changes were.
    """
    phase, where = _stretches(command)[place.phase], command.where or Where()
    if phase == "rest" and place.returned > MAX_RETURNED:
        phase = "all"
    of = len(asked)
    most = min(limit if of == 1 else limit // of * 5 // 4 + 4, SLICE)
    head = phase, where.after, where.before, where.group, most, max(room, 1)
    prefix = command.prefix or ""
    answers = yield [
        ScriptCall(
            "scan",
            command.queue,
            (*head, *_mark(place, shard), prefix, place.behind(shard)),
            shard,
            shards,
        )
        for shard in asked
    ]
    pages = raised(answers)
    if goes_by_set(command) and not place.since:
        place = place._replace(since="-".join(str(head[1]) for head, *_ in pages))
    entries: list[tuple[_Place, Message, int]] = []
    ends: list[_Place] = []
    for shard, (head, *listed) in zip(asked, pages, strict=True):
        now, _change, end, ranks = head
        if end:
            ends.append(place._replace(rank=int(end[0]), order=end[1], shard=shard))
        for at, id, record, lease in zip(ranks, *listed, strict=True):
            name, ready = id.decode(), phase == "ready"
            message = as_message(command.queue, name, record, now, ready=ready, lease=lease)
            rank, order = at.split()
            at_message = place._replace(rank=int(rank), order=order, shard=shard)
            entries.append((at_message, message, len(record) + len(id)))
    entries.sort(key=itemgetter(0))
    behind = min(ends, default=None)
    if behind is not None:
        entries = [entry for entry in entries if entry[0] <= behind]
    return entries, behind, place


def _mark(after: _Place, shard: int) -> tuple[str, str]:
    """Return behind which rank and order a shard goes on.

    In shards behind that of the place, a message of the same rank and order is next.
    """
    order = after.order
    if order and shard > after.shard:
        order = f"{int(order, 16) - 1:0{ORDER}x}"  # that of 0 begins with -, which is before digits
    return str(after.rank), order
