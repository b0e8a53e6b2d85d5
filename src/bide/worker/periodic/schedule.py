"""A schedule: a function that is called tick after tick, each in one process."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from bide.consuming.handler import Unfit
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Discard
from bide.consuming.store_client import StoreClient
from bide.logs import logger
from bide.model.commands import Cancel
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.replies import Outcomes
from bide.model.times import to_datetime
from bide.worker.periodic.chain import Links, moment_of
from bide.worker.periodic.recurrence import Recurrence, latest, parse
from bide.worker.periodic.tick import Missed, Tick


class TickBody(msgspec.Struct, frozen=True):
    """The body of a tick. Times are Unix milliseconds."""

    due: int
    previous: int | None
    spec: str
    """The `Recurrence.spec` of the schedule that put it."""
    since: int
    """When the process with this schedule started: of two different schedules the newer counts."""
    missed: bool = False


@dataclass(frozen=True, eq=False)
class Schedule:
    """One schedule of an app."""

    queue: str
    name: str
    recurrence: Recurrence
    missed: Missed
    grace: int
    """In milliseconds."""
    attempts: int


@dataclass(frozen=True)
class Plan:
    """What to do with a tick. Times are Unix milliseconds."""

    missed: bool
    """Whether it starts too late; if it is not run, whether the next one stands for missed ones."""
    following: int
    """The time of the next tick to put."""
    previous: int | None
    """The time of the tick before that."""
    why: str = ""
    """Why it is not run; empty: it is run."""


def plan(
    recurrence: Recurrence, tick: TickBody, now: int, missed: Missed, grace: int, first: bool
) -> Plan:
    """Decide what to do with a claimed tick.

    Args:
        recurrence: the times of ticks.
        tick: the one that was claimed.
        now: when, by the store's clock.
        missed: what to do with ticks that start too late.
        grace: how late a tick may start, in milliseconds; at most the period.
        first: whether it has never started; a tick that started on time is not missed later.
    """
    due = tick.due
    if recurrence.after(due - 1) != due:
        why = f"the schedule is {recurrence.spec} now"
        return Plan(False, recurrence.after(now), tick.previous, why)
    late = min(grace, recurrence.after(due) - due)
    if not first or now - due <= late:
        return Plan(tick.missed, recurrence.after(due), due)
    if missed == "skip":
        following = recurrence.after(max(due, now - late - 1))
        return Plan(False, following, tick.previous, "it was missed")
    if missed == "once" and (last := latest(recurrence, now, due)) > due:
        return Plan(True, last, tick.previous, "a later missed run replaces it")
    return Plan(True, recurrence.after(due), due)


_log = logger("bide.worker")


class ScheduleTicks(Links):
    """Runs a schedule tick by tick.

    A claimed tick puts the next one before it runs: so neither a failure of its function nor the
    death of its process stops the schedule.

    Args:
        schedule: the schedule.
        store_client: runs its commands on the store.
    """

    def __init__(self, schedule: Schedule, store_client: StoreClient) -> None:
        super().__init__(store_client, schedule.queue)
        self._schedule = schedule
        self._started: int | None = None

    async def ensure(self, *, refill: bool = False) -> None:
        """Put a tick if there is none, or if a set clock or another schedule has put a wrong one.

        A process that begins is the newest: it replaces waiting ticks of other schedules.
        """
        newest = self._started is None
        ticks = [(link, tick) for link in await self.alive() if (tick := read(link)) is not None]
        # The time last: a tick that is put after it, because another one began, is no wrong one.
        now, rule = await self.now(), self._schedule.recurrence
        self._started = self._started or now
        following = rule.after(now)
        wrong = {
            link.id: tick
            for link, tick in ticks
            if link.state == "delayed"
            and not link.attempt
            and (tick.due > following if tick.spec == rule.spec else newest)
        }
        if ticks and not wrong:
            return
        before = [tick.previous for tick in wrong.values() if tick.previous is not None]
        previous = max((time for time in before if time <= now), default=None)
        body = TickBody(following, previous, rule.spec, self._started)
        id = await self._put(rule, body)
        if old := [wrong_id for wrong_id in wrong if wrong_id != id]:
            _log.info("%s: the next tick is %s, and not %s", self._schedule.name, id, old[0])
            await self.store_client.patiently(Outcomes, Cancel(self.queue, old))

    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Put the next tick, and run this one if the plan says so."""
        schedule, message = self._schedule, handling.message
        tick = read(message)
        if tick is None:
            raise Unfit(f"this is not a tick, and {schedule.queue} is the queue of a schedule")
        rule, since = self._rule(tick)
        # A tick that has started has put the next, also if a worker that stopped has released it.
        started = await self.later(tick.due)
        first = message.attempt == 1 and not message.failures and not started
        what = plan(rule, tick, handling.claimed, schedule.missed, schedule.grace, first)
        if not started:
            # A tick that replaces missed ones counts as missed, even if it starts on time.
            replaces = what.missed and bool(what.why)
            body = TickBody(what.following, what.previous, rule.spec, since, replaces)
            await self._put(rule, body)
        if what.why:
            raise Discard(what.why)
        handling.given = Tick(
            schedule.queue,
            to_datetime(tick.due).astimezone(rule.zone),
            None if tick.previous is None else to_datetime(tick.previous).astimezone(rule.zone),
            what.missed,
        )
        await go_on()

    def _rule(self, tick: TickBody) -> tuple[Recurrence, int]:
        """Return the schedule of the next tick: ours, unless a newer process put this tick."""
        recurrence, started = self._schedule.recurrence, self._started
        if tick.spec != recurrence.spec and started is not None and tick.since > started:
            try:
                return parse(tick.spec), tick.since
            except InvalidArgument as error:  # of a zone that is not known here
                _log.warning("%s: a newer process has put a tick: %s", self._schedule.name, error)
        elif tick.spec == recurrence.spec:
            return recurrence, tick.since
        return recurrence, started or tick.since

    async def _put(self, rule: Recurrence, body: TickBody) -> str:
        """Put a tick, or the first later one that was not acked; return its id."""

        def encode(due: int) -> bytes:
            return msgspec.json.encode(msgspec.structs.replace(body, due=due))

        return await self.put(body.due, rule.after, encode, self._schedule.attempts)


def read(message: Message) -> TickBody | None:
    """Return the tick in a message; `None` if it is not one."""
    try:
        tick = msgspec.json.decode(message.data, type=TickBody) if message.json else None
    except msgspec.MsgspecError:
        return None
    return tick if tick is not None and moment_of(message.id) == tick.due else None
