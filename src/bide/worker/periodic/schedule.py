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
from bide.model.recurrence import Recurrence, latest, parse
from bide.model.replies import Outcomes
from bide.model.times import to_datetime
from bide.worker.periodic.chain import Links, moment_of
from bide.worker.periodic.tick import Missed, Tick


class TickBody(msgspec.Struct, frozen=True):
    """The body of a tick. Times are Unix milliseconds."""

    due: int
    previous: int | None
    """The time of the tick before it that was not skipped; `None`: it is the first one."""
    spec: str
    """The `Recurrence.spec` of the schedule that put it."""
    since: int
    """When the process with this schedule started: of two different schedules the newer counts."""
    missed: bool = False
    """Whether it stands for ticks that were missed: it counts as missed even if it is on time."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """One schedule of an app."""

    queue: str
    """The queue of its ticks."""
    name: str
    """That of its function, for the log."""
    recurrence: Recurrence
    missed: Missed
    grace: int
    """How late a tick may start and still be on time, in milliseconds."""
    attempts: int
    """The maximum number of attempts of a tick."""


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
    recurrence: Recurrence, tick: TickBody, now: int, missed: Missed, grace: int, *, first: bool
) -> Plan:
    """Decide what to do with a claimed tick.

    Args:
        recurrence: the times of ticks.
        tick: the one that was claimed.
        now: when, by the store's clock, in Unix milliseconds.
        missed: what to do with ticks that start too late.
        grace: how late a tick may start, in milliseconds; at most the period.
        first: whether it has never started; a tick that started on time is not missed later.
    """
    due = tick.due
    if recurrence.after(due - 1) != due:
        return Plan(
            missed=False,
            following=recurrence.after(now),
            previous=tick.previous,
            why=f"the schedule is {recurrence.spec} now",
        )
    most_late = min(grace, recurrence.after(due) - due)
    if not first or now - due <= most_late:
        return Plan(missed=tick.missed, following=recurrence.after(due), previous=due)
    if missed == "skip":
        # The first one that is on time now, or will be.
        following = recurrence.after(max(due, now - most_late - 1))
        return Plan(missed=False, following=following, previous=tick.previous, why="it was missed")
    if missed == "once" and (last := latest(recurrence, now, due)) > due:
        why = "a later missed run replaces it"
        return Plan(missed=True, following=last, previous=tick.previous, why=why)
    return Plan(missed=True, following=recurrence.after(due), previous=due)


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
        self.started: int | None = None
        """When this process began with the schedule, by the store's clock in Unix milliseconds;
        `None`: it has not yet."""

    async def ensure(self, *, refill: bool = False) -> None:
        """Put a tick if there is none, or if a set clock or another schedule has put a wrong one.

        A process that begins is the newest: it replaces waiting ticks of other schedules.
        """
        is_newest = self.started is None
        ticks = [(link, tick) for link in await self.alive() if (tick := read(link)) is not None]
        # The time is read after the ticks: a tick that another process puts in between is not among
        # them, so it cannot look wrong.
        now, rule = await self.now(), self._schedule.recurrence
        self.started = self.started or now
        following = rule.after(now)
        wrong_ticks = {
            link.id: tick
            for link, tick in ticks
            if link.state == "delayed"
            and not link.attempt  # a retry has a due time of its own
            and (tick.due > following if tick.spec == rule.spec else is_newest)
        }
        if ticks and not wrong_ticks:
            return
        previous_times = [
            tick.previous
            for tick in wrong_ticks.values()
            if tick.previous is not None and tick.previous <= now
        ]
        previous = max(previous_times, default=None)
        id = await self._put(rule, TickBody(following, previous, rule.spec, self.started))
        # Cancelled after the put: if this process dies in between, the schedule still has a tick.
        if replaced := [wrong_id for wrong_id in wrong_ticks if wrong_id != id]:
            _log.info("%s: the next tick is %s, and not %s", self._schedule.name, id, replaced[0])
            await self.store_client.patiently(Outcomes, Cancel(self.queue, replaced))

    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Put the next tick, and run this one if the plan says so.

        Args:
            handling: the claimed tick.
            go_on: calls the function of the schedule.

        Raises:
            Unfit: the message is no tick.
            Discard: it is not run, as the plan says.
        """
        schedule, message = self._schedule, handling.message
        tick = read(message)
        if tick is None:
            raise Unfit(f"this is not a tick, and {schedule.queue} is the queue of a schedule")
        rule, rule_since = self._rule(tick)
        # A tick that has started has put the next, also if a worker that stopped has released it.
        has_started = await self.has_later(tick.due)
        is_first = message.attempt == 1 and not message.failures and not has_started
        tick_plan = plan(
            rule, tick, handling.claimed, schedule.missed, schedule.grace, first=is_first
        )
        if not has_started:
            # A tick that replaces missed ones counts as missed, even if it starts on time.
            replaces_missed = tick_plan.missed and bool(tick_plan.why)
            body = TickBody(
                tick_plan.following,
                tick_plan.previous,
                rule.spec,
                rule_since,
                replaces_missed,
            )
            await self._put(rule, body)
        if tick_plan.why:
            raise Discard(tick_plan.why)
        handling.extra_argument = Tick(
            schedule=schedule.queue,
            due=to_datetime(tick.due).astimezone(rule.zone),
            previous=(
                None if tick.previous is None else to_datetime(tick.previous).astimezone(rule.zone)
            ),
            missed=tick_plan.missed,
        )
        await go_on()

    def _rule(self, tick: TickBody) -> tuple[Recurrence, int]:
        """Return the rule for the next tick, and since when a process has had it, in Unix ms.

        They are those of this process, unless a newer process put this tick: while new code is
        rolled out, an old process must not put back the old times.
        """
        own, started = self._schedule.recurrence, self.started
        if tick.spec == own.spec:
            return own, tick.since
        if started is not None and tick.since > started:
            try:
                return parse(tick.spec), tick.since
            except InvalidArgument as error:  # of a zone that is not known here
                _log.warning("%s: a newer process has put a tick: %s", self._schedule.name, error)
        return own, started or tick.since

    async def _put(self, rule: Recurrence, body: TickBody) -> str:
        """Put a tick, or the first later one that was not acked; return its id."""

        def encode(due: int) -> bytes:
            return msgspec.json.encode(msgspec.structs.replace(body, due=due))

        return await self.put(body.due, rule.after, encode, self._schedule.attempts)


def read(message: Message) -> TickBody | None:
    """Return the tick in a message; `None` if it is none, such as a message put by a user."""
    try:
        tick = msgspec.json.decode(message.data, type=TickBody) if message.json else None
    except msgspec.MsgspecError:
        return None
    return tick if tick is not None and moment_of(message.id) == tick.due else None
