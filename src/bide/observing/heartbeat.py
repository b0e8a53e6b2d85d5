"""Who is at work: what worker processes say of themselves in the store.

A worker that holds no message leaves no trace in its queues. So each says every few seconds that it
is there, in a message of its own in a queue that nobody claims from; the message is due once the
process has said nothing for a while.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import msgspec

from bide.clock import Clock, sleep
from bide.lane.lane import Lane
from bide.model.commands import Cancel, Purge, Put
from bide.model.errors import BideError, InvalidArgument
from bide.model.identity import OWN, check_name, check_queue
from bide.model.message import Item, Message
from bide.observing.tally import Histogram, Tally

__all__ = [
    "BEAT", "QUEUE", "Heartbeat", "Lately", "Roll", "announced", "forgotten", "is_register",
    "may_be_listed", "read", "swept", "together",
]  # fmt: skip

QUEUE = f"{OWN}workers"
"""The register: a queue of this name in each namespace that has workers of its own."""

BEAT = 5.0
"""How often, in seconds, a process says that it is there."""

SILENT = 20_000
"""After so many milliseconds without a word a process is taken for dead."""

WINDOW = 60.0
"""For how many seconds the lateness of deliveries is told."""

PATIENCE = 2.0
"""Seconds that taking leave may need."""

SWEEP_EVERY = 60
"""After so many beats what dead processes have said is deleted."""

LONGEST_REASON = 300
"""How many characters of an error about a wrong entry are logged."""

_log = logging.getLogger("bide.worker")


class Roll(msgspec.Struct, omit_defaults=True):
    """What a process says."""

    workers: dict[str, list[str]]
    """By the names under which it claims: the queues that it works on."""
    lateness: dict[str, Histogram] = {}
    """By queue: of the deliveries that were begun lately."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Roll).decode


def is_register(queue: str) -> bool:
    """Tell whether a queue is a register.

    Example:
        >>> is_register("bide:workers"), is_register("shop/bide:workers"), is_register("orders")
        (True, True, False)
    """
    return queue.rpartition("/")[2] == QUEUE


def announced(process: str, roll: Roll) -> Put:
    """Return the command that says what a process has to say."""
    return Put(QUEUE, [Item(process, _encode(roll), delay=SILENT)], "replace")


def forgotten(process: str) -> Cancel:
    """Return the command by which a process takes its leave."""
    return Cancel(QUEUE, [process])


def swept() -> Purge:
    """Return the command that deletes what dead processes have said."""
    return Purge(QUEUE, "ready")


def read(message: Message) -> Roll | None:
    """Return what a process has said, with the names that queues have in the whole store.

    Whoever may claim may write to the register, so everything in it is checked. A wrong entry is
    logged once.

    Returns:
        `None` if the entry is wrong, or of a newer version.
    """
    try:
        roll = _decode(message.data)
        for holder, queues in roll.workers.items():
            check_name(holder, "holder")
            for queue in queues:
                check_queue(queue)
        for queue, histogram in roll.lateness.items():
            check_queue(queue)
            histogram.check()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidArgument) as error:
        _log_wrong(message.queue, message.id, str(error)[:LONGEST_REASON])
        return None
    home = message.queue.removesuffix(QUEUE)
    return Roll(
        {holder: [home + queue for queue in queues] for holder, queues in roll.workers.items()},
        {home + queue: histogram for queue, histogram in roll.lateness.items()},
    )


@lru_cache(maxsize=1_000)
def _log_wrong(queue: str, id: str, reason: str) -> None:
    """Log a wrong entry; the cache keeps a second call for the same entry from running this."""
    _log.info("%s: the entry %r of a worker is skipped: %s", queue, id, reason)


class Lately:
    """The part of histograms that came within the last minute.

    Example:
        >>> lately, lateness = Lately(), Histogram()
        >>> lateness.observe(0.004)
        >>> lately.of({"orders": lateness}, 0.0)["orders"].count
        1
        >>> lateness.observe(0.004)
        >>> lately.of({"orders": lateness}, 61.0)["orders"].count
        1
    """

    def __init__(self) -> None:
        self._before: deque[tuple[float, dict[str, Histogram]]] = deque()

    def of(self, found: Mapping[str, Histogram], moment: float) -> dict[str, Histogram]:
        """Return what of histograms that only grow is new; to be called every few seconds.

        Args:
            found: all that was counted so far.
            moment: now, by a monotonic clock, in seconds.
        """
        before = self._before
        while len(before) > 1 and before[1][0] <= moment - WINDOW:
            before.popleft()
        base = before[0][1] if before and before[0][0] <= moment - WINDOW else {}
        before.append((moment, {name: one.plus(Histogram()) for name, one in found.items()}))
        new = {
            name: one.minus(base[name]) if name in base else one.plus(Histogram())
            for name, one in found.items()
        }
        return {name: one for name, one in new.items() if one.count}


def together(rolls: Iterable[Roll]) -> dict[str, Histogram]:
    """Return the lateness of all processes, by queue."""
    found: dict[str, Histogram] = {}
    for roll in rolls:
        for queue, histogram in roll.lateness.items():
            found[queue] = found[queue].plus(histogram) if queue in found else histogram
    return found


def may_be_listed(lane: Lane) -> bool:
    """Tell whether there is a place in the store for it, and somebody to look there."""
    can = lane.capabilities
    return can.shared and can.random_access


class Heartbeat:
    """Says every few seconds which worker is there, on which queues, and how late it was lately.

    Nothing depends on it: a store that is away, or that lets this worker put nothing, is no reason
    to work less.

    Args:
        lane: the way to the store.
        clock: what beats are measured by.
        process: by what name the store knows it.
        workers: returns who is there, and the queues that each works on.
        tallies: returns what was done so far, by queue.
    """

    def __init__(
        self,
        lane: Lane,
        clock: Clock,
        process: str,
        workers: Callable[[], Mapping[str, list[str]]],
        tallies: Callable[[], Mapping[str, Tally]],
    ) -> None:
        self._lane = lane
        self._clock = clock
        self._process = process
        self._workers = workers
        self._tallies = tallies
        self._lately = Lately()
        self._listed = False
        self._complained = False

    async def keep(self) -> None:
        """Say it for as long as this runs."""
        beats = 0
        while True:
            try:
                await self._say()
                if beats % SWEEP_EVERY == 0 and self._listed:
                    await self._lane.acall(swept())
                self._complained = False
            except BideError as error:
                if not self._complained:
                    _log.info("others cannot be told that this process is there: %s", error)
                self._complained = True
            beats += 1
            await sleep(self._clock, BEAT)

    async def leave(self) -> None:
        """Be there no longer."""
        if not self._listed:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._lane.acall(forgotten(self._process))
        except (BideError, TimeoutError) as error:
            _log.debug("this process is listed until it is missed: %s", error)

    async def _say(self) -> None:
        lateness = {queue: tally.lateness for queue, tally in self._tallies().items()}
        lately = self._lately.of(lateness, self._clock.monotonic())
        workers = {holder: sorted(queues) for holder, queues in self._workers().items()}
        if workers or lately:
            await self._lane.acall(announced(self._process, Roll(workers, lately)))
            self._listed = True
        elif self._listed:
            await self._lane.acall(forgotten(self._process))
            self._listed = False
