"""Find, scan, count, forecast: what reads and changes nothing."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.engines.pages import PHASES, Phase, cursor_after, position
from bide.engines.redis.records import NAME, SEQ, as_message
from bide.engines.redis.verbs.job import Call, Job, decode, parts
from bide.model.commands import Count, Find, Forecast, Scan
from bide.model.message import Message
from bide.model.replies import Counts, Flow, Forecasted, Found, Page, Sizes

__all__ = ["check_cursor", "count", "find", "forecast", "scan", "scan_args", "scanned"]

_EDGES = 1_000
_MOST = 500
"""How many messages one call of the script `scan` tells of at most."""


def _held(mark: bytes | None) -> tuple[str | None, int | None]:
    """Return who holds a message, and until when."""
    if mark is None:
        return None, None
    _, until, holder = mark[NAME:].split(b" ", 2)
    return holder.decode(), int(until)


def find(command: Find) -> Job:
    """Look at messages by id."""
    room = command.max_bytes
    found: list[Message | None] = []
    for lot in parts(command.ids):
        ((now, records, marks),) = yield [Call("find", command.queue, [room, *lot])]
        for id, record, mark in zip(lot, records, marks, strict=False):
            holder, until = _held(mark)
            found.append(
                record
                and as_message(command.queue, id, record, int(now), holder=holder, until=until)
            )
        room -= sum(len(record) for record in records if record)
        if room <= 0 or len(records) < len(lot):
            break
    return [Found(found)]


def _of_all(command: Scan) -> bool:
    return command.state is None and (command.where is None or command.where.group is None)


def check_cursor(command: Scan) -> tuple[int, str, str]:
    """Return where a scan goes on: its phase, and the place in it.

    Raises:
        InvalidArgument: no scan made this cursor.
    """
    phase, (rank, seq) = position(command.cursor)
    return phase, *(("", "") if rank < 0 else (str(rank), f"{seq:0{SEQ}x}"))


def scan(command: Scan) -> Job:
    """Look at a page of messages."""
    phases = PHASES[command.state]
    number, rank, seq = check_cursor(command)
    messages: list[Message] = []
    room = command.max_bytes
    for index in range(number, len(phases)):
        if index > number:
            rank, seq = "", ""
        while True:
            left = command.limit - len(messages)
            space = (room, 0 if messages else 1)
            args = (*scan_args(command, phases[index], left, rank, seq), *space)
            ((text, *listed),) = yield [Call("scan", command.queue, args)]
            now, place, full = decode(text)
            messages += scanned(command.queue, now, phases[index], listed)
            room -= sum(map(len, listed[1]))
            if place is not None:
                rank, seq = place
            if full or (place is not None and len(messages) == command.limit):
                cursor = cursor_after(index, int(rank or 0), int(seq or "0", 16))
                return [Page(messages, cursor)]
            if place is None:
                break
        if len(messages) == command.limit and index + 1 < len(phases):
            return [Page(messages, cursor_after(index + 1, 0, 0))]
    return [Page(messages, None)]


def scan_args(command: Scan, phase: Phase, left: int, rank: str, seq: str) -> tuple[str | int, ...]:
    """Return what the script `scan` is given to tell of up to so many behind a place."""
    where = command.where
    which = phase.state or ("all" if _of_all(command) else "group")
    due = "" if phase.due is None else "due" if phase.due else "waiting"
    bounds: tuple[str | int, ...] = "", "", ""
    if where is not None:
        after = "" if where.after is None else where.after
        before = "" if where.before is None else where.before
        bounds = after, before, where.group or ""
    return which, due, *bounds, min(left, _MOST), rank, seq


def scanned(queue: str, now: int, phase: Phase, listed: Sequence[Any]) -> list[Message]:
    """Return the messages that the script `scan` tells of."""
    ready = phase.state == "ready"
    return [
        as_message(queue, id.decode(), record, now, ready=ready, holder=holder, until=until)
        for id, record, mark in zip(*listed, strict=True)
        for holder, until in (_held(mark),)
    ]


def count(command: Count) -> Job:
    """Count by the sizes of the sets; what is due of the delayed ones by their ranks."""
    (text,) = yield [Call("count", command.queue)]
    delayed, ready, leased, dead, kept, paused, keep, oldest, strays, flow = decode(text)
    sizes = Sizes(delayed, ready, leased, dead)
    counts = Counts(sizes, Flow(*flow), kept=kept, paused=paused, keep=keep, oldest=oldest)
    if not command.recount:
        return [counts]
    place, offset = 1, 0
    while place is not None:
        (text,) = yield [Call("audit", command.queue, (place, offset))]
        more, place, offset = decode(text)
        strays += more
    return [msgspec.structs.replace(counts, recount=sizes, strays=strays)]


def forecast(command: Forecast) -> Job:
    """Count what falls due in each bucket."""
    first: int | None = None
    start, overdue, later = None, 0, 0
    counts: list[int] = []
    left = command.buckets
    while True:
        span = min(left, _EDGES)
        args = (command.bucket, span, "" if start is None else start)
        (text,) = yield [Call("forecast", command.queue, args)]
        moment, before, part, later = decode(text)
        if first is None:
            first, overdue = moment, before
        counts += part
        left -= span
        start = moment + span * command.bucket
        if left <= 0:
            return [Forecasted(first, overdue, counts, later)]
