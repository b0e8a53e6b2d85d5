"""Record the counters of all queues once a minute, so that the past of a store can be seen.

Each worker and each server looks once a minute, and the first one records. A record replaces the
one of a round before, if that is still there: so of two processes that race one is refused, and the
record takes the same place for ever.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from bide.clock import Clock, sleep
from bide.lane.steps import arun_steps
from bide.logs import logger
from bide.model.commands import Command, Count, Find, ForecastCommand, Put, Queues
from bide.model.errors import BideError
from bide.model.identity import split_name
from bide.model.internal_queues import InternalQueue, is_internal
from bide.model.message import Item, Message
from bide.model.past import SLOT_MS, SlotLength, slot_id, slot_start
from bide.model.replies import Counts, Forecasted, Found, Names, Outcomes, expect
from bide.model.times import LATEST
from bide.observing.heartbeat import REGISTER, recent_reports
from bide.observing.past import (
    PAST,
    Buckets,
    Counters,
    PastRecord,
    encode_record,
    histogram_of,
    minutes_after,
    read_records,
    record_in,
)
from bide.observing.tally import MOST, Tally, total

Ask = Callable[[Command], Awaitable[Any]]
"""Executes a command, and returns its reply; those of one time may share a commit."""

MOST_RECORDED = 100
"""How many queues a record has: those in which most has happened so far, of each namespace in
turn. The others are left out."""

MOST_LOOKED_AT = 200
"""How many other queues are counted for a record, in turn, to find those that belong into it."""

MOST_REGISTERS = 100
"""How many registers of workers are read for a record: those of the first namespaces."""

LATEST_LOOK = 5.0
"""Seconds after the beginning of a minute, at most, in which a process looks: those that have
started together do not look together."""

_log = logger("bide.past")

Tallies = Callable[[], Mapping[str, Tally]]
"""Returns what a process has done so far, by queue."""


class PastRecorder:
    """Records the counters of a store once a minute, unless another process was first.

    Nothing depends on it: if the store is down, or does not let this process put, work goes on.

    Args:
        ask: executes commands on the store.
        clock: measures pauses.
        tallies: of this process, if no other one works on the store; `None`: workers report their
            lateness in the store.
    """

    def __init__(self, ask: Ask, clock: Clock, tallies: Tallies | None = None) -> None:
        self._ask, self._clock, self._tallies = ask, clock, tallies
        self._tallies_before: dict[str, Tally] = {}
        """The tallies at the last record, by queue."""
        self._look_after = random.uniform(0, LATEST_LOOK)
        self._has_complained = False
        """Whether the last look failed, which is logged once."""

    async def keep(self) -> None:
        """Record once a minute, until cancelled."""
        while True:
            pause = SLOT_MS["minute"] / 1000
            try:
                now = await self.record()
                pause = (SLOT_MS["minute"] - now % SLOT_MS["minute"]) / 1000 + self._look_after
                self._has_complained = False
            except BideError as error:
                if not self._has_complained:
                    _log.info("this process cannot record what happens in queues: %s", error)
                self._has_complained = True
            await sleep(self._clock, pause)

    async def record(self) -> int:
        """Record this minute, and this hour, unless that was done; return the store's time."""
        forecast = expect(Forecasted, await self._ask(ForecastCommand(PAST, 1, 0)))
        now = forecast.start
        minute, hour = slot_start(now, "minute"), slot_start(now, "hour")
        minute_before = minute - SLOT_MS["minute"]
        ids = [slot_id(minute, "minute"), slot_id(hour, "hour"), slot_id(minute_before, "minute")]
        reply = expect(Found, await self._ask(Find(PAST, ids)))
        of_minute, of_hour, of_minute_before = reply.messages
        if _is_of(of_minute, minute, "minute"):
            return now
        previous = record_in(of_minute_before, minute_before, "minute", lambda queue: True)
        record = await self._new_record(now, () if previous is None else previous.queues)
        if await self._put(record, of_minute, ids[0]) and not _is_of(of_hour, hour, "hour"):
            late = await self._late_of_hour(hour, record)
            await self._put(msgspec.structs.replace(record, late=late), of_hour, ids[1])
        return now

    async def _put(self, record: PastRecord, before: Message | None, id: str) -> bool:
        """Put a record in its place; return whether no other process was faster.

        Args:
            record: the record.
            before: what was in its place when this process looked.
            id: of its place.
        """
        put = Put(PAST, [Item(id, encode_record(record), at=LATEST)])
        if before is not None:
            put = Put(PAST, put.items, "replace", before.version)
        return expect(Outcomes, await self._ask(put)).outcomes[0].done

    async def _new_record(self, now: int, recorded: Collection[str]) -> PastRecord:
        """Read the counters of queues, and the lateness of the last minute.

        Args:
            now: the store's clock, in Unix milliseconds.
            recorded: the queues of the record before.
        """
        names = expect(Names, await self._ask(Queues(""))).names
        queues = [name for name in names if not is_internal(name)]
        counted = looked_at(queues, recorded, now // SLOT_MS["minute"])
        replies = await asyncio.gather(*(self._ask(Count(queue)) for queue in counted))
        counters = {
            queue: Counters.of(expect(Counts, reply).flow)
            for queue, reply in zip(counted, replies, strict=True)
        }
        chosen = most_used(counters, MOST_RECORDED)
        late = await self._late_of_minute(names, now)
        return PastRecord(
            now,
            {queue: counters[queue] for queue in chosen},
            {queue: late[queue] for queue in chosen if queue in late},
            len(queues) - len(chosen),
        )

    async def _late_of_minute(self, names: Sequence[str], now: int) -> dict[str, Buckets]:
        """Return how late deliveries of the last minute were, by queue."""
        if self._tallies is not None:
            tallies = self._tallies()
            late = {
                queue: tally.late_since(self._tallies_before.get(queue, Tally())).lateness
                for queue, tally in tallies.items()
            }
            # Since nothing: a copy, which later deliveries do not change.
            copies = {queue: tally.late_since(Tally()) for queue, tally in tallies.items()}
            self._tallies_before = copies
        else:
            # A server does not name its own; without a namespace it is the first.
            registers = {REGISTER, *filter(InternalQueue.WORKERS.matches, names)}
            steps = recent_reports(sorted(registers, key=len)[:MOST_REGISTERS], now)
            reports, _ = await arun_steps(steps, self._ask)
            alive = [recent.report.lateness for recent in reports if recent.silent is None]
            late = total(alive)
        return {
            queue: [min(count, MOST) for count in histogram.buckets]
            for queue, histogram in late.items()
            if histogram.count
        }

    async def _late_of_hour(self, hour: int, record: PastRecord) -> dict[str, Buckets]:
        """Return how late deliveries of the hour before were, by queue."""
        minutes = minutes_after(hour - SLOT_MS["hour"], hour)
        records = await arun_steps(
            read_records(minutes, "minute", lambda queue: queue in record.queues), self._ask
        )
        return histogram_of(records.values())


def _is_of(message: Message | None, start: int, by: SlotLength) -> bool:
    """Return whether the record of a slot is in its place."""
    return record_in(message, start, by, lambda queue: False) is not None


def looked_at(queues: Sequence[str], recorded: Collection[str], turn: int) -> list[str]:
    """Return which queues are counted for a record: those of the last one, and others in turn.

    Args:
        queues: all.
        recorded: those of the last record.
        turn: the number of this record.

    Example:
        >>> looked_at(["mail", "orders"], [], 7)
        ['mail', 'orders']
    """
    known = [queue for queue in queues if queue in recorded]
    others = [queue for queue in queues if queue not in recorded]
    if len(others) > MOST_LOOKED_AT:
        start = turn * MOST_LOOKED_AT % len(others)
        others = [*others[start:], *others[:start]][:MOST_LOOKED_AT]
    return [*known, *others]


def most_used(counters: Mapping[str, Counters], most: int) -> list[str]:
    """Return the queues in which most has happened, of each namespace in turn, by name.

    Example:
        >>> busy, idle = Counters(9, 9, 0, 0, 0, 0, 0), Counters(1, 0, 0, 0, 0, 0, 0)
        >>> most_used({"a/1": busy, "a/2": busy, "b/1": idle}, 2)
        ['a/1', 'b/1']
    """
    ranked = sorted(counters, key=lambda queue: (-counters[queue].total, queue))
    by_namespace: defaultdict[str | None, list[str]] = defaultdict(list)
    for queue in ranked:
        namespace, _ = split_name(queue)
        by_namespace[namespace].append(queue)
    places = chain.from_iterable(map(enumerate, by_namespace.values()))
    return sorted(queue for _, queue in sorted(places, key=lambda place: place[0])[:most])
