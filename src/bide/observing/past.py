"""The record of the past: what is in it, and what it says of each slot.

A record has the counters of the store's queues at a time, and how late deliveries were in the slot
before. What happened in a slot is the difference of two records. They are in an internal queue of
the store, as many as there are slots; see `bide.observing.recorder`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar, cast

import msgspec

from bide.lane.steps import Steps
from bide.logs import logger
from bide.model.commands import Command, Find, ForecastCommand, Queues
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_BODY
from bide.model.message import Message
from bide.model.parts import in_parts
from bide.model.past import (
    SLOT_MS,
    Past,
    PastCommand,
    PastSlot,
    SlotLength,
    slot_id,
    slot_start,
)
from bide.model.replies import Flow, Forecasted, Found
from bide.observing.sample import Lateness
from bide.observing.tally import BOUNDS, MOST, Histogram, total

PAST = InternalQueue.PAST.value
"""The queue of the record: one in a store."""

READ_AT_ONCE = 120
"""How many records one command reads."""

LATEST_START = 5 * SLOT_MS["minute"]
"""Milliseconds: a record of an hour that was made so late ends the hour before no more, because it
would count what happened since then, too."""

_log = logger("bide.past")

T = TypeVar("T")

Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class Counters(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The counters of a queue since it exists, as far as they are recorded."""

    put: Number
    acked: Number
    cancelled: Number
    expired: Number
    died: Number
    retried: Number
    lapsed: Number

    @classmethod
    def of(cls, flow: Flow) -> "Counters":
        """Return those of a queue."""
        return cls(*(getattr(flow, name) for name in cls.__struct_fields__))

    @property
    def total(self) -> int:
        """How much has happened in the queue."""
        return sum(msgspec.structs.astuple(self))

    def since(self, before: "Counters") -> "Counters | None":
        """Return what was counted since; `None` if a counter is smaller than before.

        Then the queue was deleted and made again, or the store has lost something.
        """
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        grown = [now - then for now, then in pairs]
        return None if min(grown) < 0 else Counters(*grown)


NOTHING = Counters(*([0] * len(Counters.__struct_fields__)))

Buckets = Annotated[
    list[Number], msgspec.Meta(min_length=len(BOUNDS) + 1, max_length=len(BOUNDS) + 1)
]


class PastRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The counters of queues at one time, and the lateness of deliveries in the slot before."""

    at: int
    """When the counters were read, in Unix milliseconds of the store's clock."""
    queues: dict[str, Counters]
    """The counters, by the names of queues in the store."""
    late: dict[str, Buckets] = {}
    """How many deliveries began how late in the slot before, by queue; see `Histogram`."""
    left_out: int = 0
    """How many queues it has not."""


class _Undecoded(msgspec.Struct, frozen=True):
    """A record of which few queues are wanted: the others are not decoded."""

    at: int
    queues: dict[str, msgspec.Raw]
    late: dict[str, msgspec.Raw] = {}
    left_out: int = 0


encode_record = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Undecoded).decode
_decode_counters = msgspec.json.Decoder(Counters).decode
_decode_buckets = msgspec.json.Decoder(Buckets).decode

Wanted = Callable[[str], bool]
"""Tells whether a queue is wanted, by its name in the store."""


def record_in(
    message: Message | None, start: int, by: SlotLength, wanted: Wanted
) -> PastRecord | None:
    """Return the record of a slot, with the queues that are wanted.

    Args:
        message: what is stored in the place of the slot.
        start: when the slot begins.
        by: how long it is.
        wanted: tells which queues are decoded.

    Returns:
        `None` if that of an earlier round is in its place, or none.
    """
    if message is None:
        return None
    try:
        stored = _decode(message.data)
        if slot_start(stored.at, by) != start:
            return None
        return PastRecord(
            stored.at,
            _decoded(stored.queues, _decode_counters, wanted),
            _decoded(stored.late, _decode_buckets, wanted),
            stored.left_out,
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # another version of bide wrote it
        _log.info("the record %s is skipped: %s", message.id, error)
        return None


def _decoded(
    parts: Mapping[str, msgspec.Raw], decode: Callable[[msgspec.Raw], T], wanted: Wanted
) -> dict[str, T]:
    return {name: decode(part) for name, part in parts.items() if wanted(name)}


def read_records(
    starts: Sequence[int], by: SlotLength, wanted: Wanted
) -> Steps[dict[int, PastRecord]]:
    """Read the records of slots, by when these begin; those that do not exist are left out."""
    records: dict[int, PastRecord] = {}
    for part in in_parts(starts, READ_AT_ONCE):
        remaining = list(part)
        while remaining:
            ids = [slot_id(start, by) for start in remaining]
            reply: Found = yield Find(PAST, ids, max_bytes=MAX_BODY)  # has the first ones at least
            for start, message in zip(remaining, reply.messages, strict=False):
                if (record := record_in(message, start, by, wanted)) is not None:
                    records[start] = record
            remaining = remaining[len(reply.messages) :]
    return records


def histogram_of(records: Iterable[PastRecord]) -> dict[str, Buckets]:
    """Return the lateness of several records together, by queue."""
    sums = total({name: list(late) for name, late in record.late.items()} for record in records)
    return {name: [min(count, MOST) for count in late] for name, late in sums.items()}


def slot_between(
    before: PastRecord, after: PastRecord, late: Mapping[str, Buckets]
) -> PastSlot | None:
    """Return what happened between two records in all their queues together.

    Args:
        before: the record at the beginning.
        after: the record at the end.
        late: the lateness of the deliveries between them, by queue.

    Returns:
        `None` if nothing is known of any queue.
    """
    names = before.queues.keys() | after.queues.keys()
    grown = [_grown(name, before, after) for name in names]
    known = [counters for counters in grown if counters is not None]
    if not known and (names or before.left_out or after.left_out):
        return None
    lateness = Histogram()
    for buckets in late.values():
        lateness = lateness.plus(Histogram(list(buckets)))
    quantiles = Lateness.of(lateness)
    return PastSlot(
        put=sum(counters.put for counters in known),
        done=sum(counters.acked for counters in known),
        failed=sum(counters.retried + counters.died + counters.lapsed for counters in known),
        cancelled=sum(counters.cancelled for counters in known),
        expired=sum(counters.expired for counters in known),
        died=sum(counters.died for counters in known),
        delivered=quantiles.count,
        p50=quantiles.p50,
        p99=quantiles.p99,
    )


def _grown(name: str, before: PastRecord, after: PastRecord) -> Counters | None:
    """Return what happened in a queue between two records; `None` if that is not known."""
    old, new = before.queues.get(name), after.queues.get(name)
    if new is None:  # it was deleted, or is left out
        return None
    if old is None:  # it is new, unless it was left out
        return None if before.left_out else new
    return new.since(old)


def minutes_between(
    records: Mapping[int, PastRecord], starts: Iterable[int]
) -> list[PastSlot | None]:
    """Return what happened in each minute, by the records of minutes.

    Example:
        >>> records = {0: PastRecord(5, {}), 60_000: PastRecord(60_005, {})}
        >>> [slot is None for slot in minutes_between(records, [0, 60_000])]
        [False, True]
    """
    slots: list[PastSlot | None] = []
    for start in starts:
        before, after = records.get(start), records.get(start + SLOT_MS["minute"])
        slot = None
        if before is not None and after is not None:
            slot = slot_between(before, after, after.late)
        slots.append(slot)
    return slots


def hours_between(
    records: Mapping[int, PastRecord],
    minutes: Mapping[int, PastRecord],
    starts: Iterable[int],
) -> list[PastSlot | None]:
    """Return what happened in each hour.

    Args:
        records: the records of hours, by when these begin.
        minutes: the records of the minutes of the hour that is under way, which they end so far.
        starts: when the hours begin.
    """
    slots: list[PastSlot | None] = []
    for start in starts:
        end = start + SLOT_MS["hour"]
        before, after = records.get(start), records.get(end)
        slot = None
        if before is not None and after is not None:
            if after.at < end + LATEST_START:
                slot = slot_between(before, after, after.late)
        elif before is not None:
            within = [record for minute, record in minutes.items() if start < minute < end]
            if within:
                last = max(within, key=lambda record: record.at)
                slot = slot_between(before, last, histogram_of(within))
        slots.append(slot)
    return slots


def minutes_after(start: int, end: int) -> range:
    """Return when the minutes begin after a time and up to another, in Unix milliseconds.

    Example:
        >>> list(minutes_after(0, 180_500))
        [60000, 120000, 180000]
    """
    minute_ms = SLOT_MS["minute"]
    return range(slot_start(start, "minute") + minute_ms, end + 1, minute_ms)


def reading_past(
    command: PastCommand, wanted: Wanted, *, has_server: Callable[[], bool]
) -> Steps[Past]:
    """Read what has happened in queues.

    Args:
        command: which slots.
        wanted: tells which queues, by their names in the store.
        has_server: tells whether a server of bide reads it for its callers; called once the store
            is open. See `Capabilities`.
    """
    yield Queues("-")  # opens the store: the cheapest command
    if has_server():
        past: Past = yield cast("Command", command)
        return past
    forecast: Forecasted = yield ForecastCommand(PAST, 1, 0)  # for the time of the store alone
    return (yield from past_until(forecast.start, command, wanted))


def past_until(now: int, command: PastCommand, wanted: Wanted) -> Steps[Past]:
    """Read what has happened in queues up to a time.

    Args:
        now: the store's clock, in Unix milliseconds.
        command: which slots.
        wanted: tells which queues, by their names in the store.
    """
    by, slot_ms = command.by, SLOT_MS[command.by]
    current = slot_start(now, by)
    if by == "minute":
        # The minute before is over, and known once this one is recorded: else the last slot is
        # the one before that.
        first = current - (command.slots + 1) * slot_ms
        records = yield from read_records(range(first, current + 1, slot_ms), by, wanted)
        end = current if current in records else current - slot_ms
        starts = range(end - command.slots * slot_ms, end, slot_ms)
        slots, recorded = minutes_between(records, starts), len(records)
    else:
        starts = range(current - (command.slots - 1) * slot_ms, current + 1, slot_ms)
        records = yield from read_records(starts, by, wanted)
        minutes = yield from read_records(minutes_after(current, now), "minute", wanted)
        slots, recorded = hours_between(records, minutes, starts), len(records) + len(minutes)
    newest = records[max(records)] if records else None
    return Past(
        start=starts[0],
        slot=slot_ms,
        slots=slots,
        recorded=recorded,
        left_out=0 if newest is None else newest.left_out,
    )
