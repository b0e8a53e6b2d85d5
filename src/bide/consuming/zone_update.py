"""Plan the messages of a store again when this process has greater data of time zones.

For each queue, a message in an internal queue remembers by which version its messages are planned.
A process with a greater one moves what must move, page by page, and then writes its own version
there. If it dies in between, the next one does the same again: what was moved stays. A process with
a smaller or an unknown version changes nothing.

Of the processes of a store, one at a time does this; the others look again until they have seen
that it is done.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from bide.clock import Clock, sleep
from bide.consuming.store_lock import Ask, LockLost, StoreLock
from bide.lane.local_times import moving, take_behind
from bide.lane.steps import following
from bide.logs import logger
from bide.model.commands import (
    Command,
    Find,
    ForecastCommand,
    Put,
    Queues,
    Reschedule,
    Scan,
)
from bide.model.errors import AccessDenied, InvalidArgument, StoreError, StoreFull
from bide.model.identity import split_name
from bide.model.internal_queues import INTERNAL_PREFIX, InternalQueue, is_internal
from bide.model.message import Item, Message
from bide.model.replanning import Replanned, has_zone, replanned
from bide.model.replies import Forecasted, Found, Names, Outcome, Outcomes, Page, expect
from bide.model.times import LATEST, UnixMs
from bide.model.zones import ZoneData, is_newer, is_version, own_zones

PAGE = 500
"""How many messages are read at a time."""

REST = 4
"""How many times as long as a command takes the update waits after it: so it takes a fifth of the
store's time at most, and nobody waits for it while it reads millions of messages."""

LOOK_EVERY = 60.0
"""Seconds between two looks of a process at what its claims have shown."""

LOOK_SOON = 5.0
"""Seconds until the next look while queues are left, as another process is at it: when that was one
with older data, as in a rolling deploy, there is something to do."""

LOOK_AGAIN = 3_600.0
"""Seconds between two reads of a queue into which processes with smaller data put."""

LOCK = f"{INTERNAL_PREFIX}lock"
"""The id of the lock, beside the records of queues: no queue of users has this name."""

_log = logger("bide.zones")


class DueMove(NamedTuple):
    """A message that other data of time zones plan for another time."""

    message: Message
    new_plan: Replanned


class ZoneRecord(msgspec.Struct, frozen=True):
    """By which version of time zones the messages of a queue are planned."""

    zones: str = ""
    """The version; empty: no process has looked yet."""
    at: int = 0
    """When it was planned by that, in Unix milliseconds."""
    version: str | None = None
    """The version of the message that says so; `None`: there is none."""


class _Body(msgspec.Struct):
    """The body of a message in the internal queue."""

    zones: str
    at: UnixMs = 0


async def keep_planned(ask: Ask, clock: Clock) -> None:
    """Plan the messages of a store again where this is needed, now and after puts of old processes.

    Runs until cancelled, in the background: see `REST`.

    Args:
        ask: executes commands on the store.
        clock: measures pauses.
    """

    async def ask_slowly(command: Command) -> Any:
        begun = clock.monotonic()
        reply = await ask(command)
        await sleep(clock, REST * (clock.monotonic() - begun))
        return reply

    zones = own_zones()
    if not zones.version:
        _log.info("the version of the time zones of this machine is not known: no message moves")
        await asyncio.Event().wait()
    read_at: dict[str, float] = {}  # by queue, in seconds of the monotonic clock
    to_update: dict[str, float] = {}  # by queue: `put` of `update_queue`
    has_listed = False
    while True:
        try:
            if not has_listed:
                to_update |= dict.fromkeys(await queues_of(ask_slowly), 0)
                has_listed = True
            for queue, put in take_behind().items():
                if clock.monotonic() - read_at.get(queue, -LOOK_AGAIN) >= LOOK_AGAIN:
                    read_at[queue] = clock.monotonic()
                    to_update[queue] = put
            if to_update:
                await _update_alone(ask_slowly, clock, to_update, zones)
        except StoreError as error:  # it is away: the next look goes on
            _log.debug("messages are planned again later: %s", error)
        await sleep(clock, LOOK_SOON if to_update else LOOK_EVERY)


async def _update_alone(
    ask: Ask, clock: Clock, to_update: dict[str, float], zones: ZoneData
) -> None:
    """Update queues unless another process is at it; take out those that are done.

    A process that may not put the lock does without: what two move at once is moved by one of them.

    Args:
        ask: executes commands on the store.
        clock: measures when to say again that this process is at it.
        to_update: by queue, the `put` of `update_queue`.
        zones: the data.
    """
    lock = StoreLock(InternalQueue.ZONES.value, LOCK, ask, clock)

    async def ask_locked(command: Command) -> Any:
        await lock.renew()
        return await ask(command)

    try:
        other = await lock.look()
        if (other is not None and other.state == "delayed") or not await lock.take(other):
            return
    except (AccessDenied, StoreFull) as error:
        _log.debug("messages are planned again without a lock: %s", error)
        await _update(ask, to_update, zones)
        return
    try:
        await _update(ask_locked, to_update, zones)
    except LockLost:
        _log.debug("another process plans messages again")
    else:  # a process that stops, or whose store is away, leaves that to time: nothing waits for it
        await lock.release()


async def _update(ask: Ask, to_update: dict[str, float], zones: ZoneData) -> None:
    """Update queues, and take out those that are done."""
    for queue, put in list(to_update.items()):
        await update_queue(ask, queue, zones, put=put)
        del to_update[queue]


async def queues_of(ask: Ask) -> list[str]:
    """Return the queues of a store, without those of bide itself."""
    names = expect(Names, await ask(Queues(""))).names
    return [name for name in names if not is_internal(name)]


async def update_queue(ask: Ask, queue: str, zones: ZoneData, *, put: float = 0) -> int:
    """Plan the messages of a queue again if `zones` are greater than the data of its last plan.

    What may not be read or changed is left to others.

    Args:
        ask: executes commands on the store.
        queue: the queue.
        zones: the data.
        put: also if the queue was planned by these before this time, in Unix milliseconds: an
            older process has put into it since; `inf`: in any case.

    Returns:
        How many messages were moved.
    """
    try:
        record = await record_of(ask, queue)
        is_same = zones.version == record.zones
        if not (is_newer(zones.version, record.zones) or (is_same and record.at < put)):
            return 0
        begun = expect(Forecasted, await ask(ForecastCommand(queue, 1, 0))).start
        count, reads = 0, 0
        async for messages in messages_with_zone(ask, queue):
            reads += 1 + len(messages)
            moved: list[DueMove] = []
            for message in messages:
                moved += what_moves([message], zones)
                await asyncio.sleep(0)  # a rule may take a millisecond
            count += await _move(ask, queue, moved)
        _log_moved(queue, count, zones)
        # Of a queue with a page of other messages nothing is remembered: to read it is as cheap.
        while reads > 1 and not is_newer(record.zones, zones.version):
            if await _write(ask, queue, record, zones.version, begun):
                break
            record = await record_of(ask, queue)  # another process has written
    except (AccessDenied, StoreFull) as error:
        _log.warning("%s is not planned by time zones %s: %s", queue, zones.version, error)
        return 0
    return count


async def record_of(ask: Ask, queue: str) -> ZoneRecord:
    """Return by which version of time zones the messages of a queue are planned."""
    reply = expect(Found, await ask(Find(*_place_of(queue))))
    (message,) = reply.messages
    if message is None or message.state != "delayed":
        return ZoneRecord()
    try:
        body = msgspec.json.decode(message.data, type=_Body)
    except msgspec.MsgspecError:
        body = _Body("")
    return ZoneRecord(body.zones if is_version(body.zones) else "", body.at, message.version)


def _place_of(queue: str) -> tuple[str, list[str]]:
    """Return the internal queue that remembers the version of a queue, and the id there."""
    return InternalQueue.ZONES.beside(queue), [split_name(queue)[1]]


async def _write(ask: Ask, queue: str, record: ZoneRecord, version: str, at: int) -> bool:
    """Write by which version a queue is planned, and since when, if the record is as it was read.

    Returns whether it was.
    """
    internal, (name,) = _place_of(queue)
    item = Item(name, msgspec.json.encode(_Body(version, at)), at=LATEST)
    if record.version is None:
        command = Put(internal, [item])
    else:
        command = Put(internal, [item], "replace", record.version)
    return expect(Outcomes, await ask(command)).outcomes[0].done


def _log_moved(queue: str, count: int, zones: ZoneData) -> None:
    """Log how many messages of a queue were moved, if any."""
    if count:
        _log.info("%s: %d messages were moved, by time zones %s", queue, count, zones.version)


async def messages_with_zone(ask: Ask, queue: str) -> AsyncIterator[list[Message]]:
    """Yield the messages that wait in a queue, and whose time depends on a zone, page by page."""
    scan: Scan | None = Scan(queue, "next", limit=PAGE)
    while scan is not None:
        page = expect(Page, await ask(scan))
        yield [message for message in page.messages if has_zone(message)]
        scan = following(scan, page)


def what_moves(messages: Sequence[Message], zones: ZoneData) -> list[DueMove]:
    """Return the messages that other data of time zones plan for another time, with that plan."""
    moved: list[DueMove] = []
    for message in messages:
        try:
            new_plan = replanned(message, zones)
        except InvalidArgument as error:  # a later bide wrote it, or the zone is gone
            _log.warning("%s of %s is not planned again: %s", message.id, message.queue, error)
            continue
        if new_plan is not None:
            moved.append(DueMove(message, new_plan))
    return moved


async def _move(ask: Ask, queue: str, moved: Sequence[DueMove]) -> int:
    """Move messages, each unless it has changed since it was read; return how many were moved."""
    # A version does not cover the due time of a run, so that comes first, if it is as it was read.
    dues: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for message, new_plan in moved:
        if message.repeats:
            dues[message.due, new_plan.due].append(message.id)
    moved_runs: set[str] = set()
    for (due, new_due), ids in dues.items():
        outcomes = await _outcomes(ask, Reschedule(queue, ids, at=new_due, if_due=due))
        moved_runs |= {outcome.id for outcome in outcomes if outcome.done}
    edited = [pair for pair in moved if not pair.message.repeats or pair.message.id in moved_runs]
    if not edited:
        return 0
    return sum(outcome.done for outcome in await _outcomes(ask, moving(queue, edited)))


async def _outcomes(ask: Ask, command: Command) -> list[Outcome]:
    """Execute a change, and return its outcomes."""
    return expect(Outcomes, await ask(command)).outcomes
