"""A schedule: a function that is called tick after tick, by one message that repeats."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from bide.consuming.handler import Unfit
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Discard
from bide.consuming.store_client import StoreClient
from bide.lane.steps import arun_steps
from bide.logs import logger
from bide.model.commands import Cancel, Edit, Find, OnConflict, Put, Reschedule
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.message import Item, Message
from bide.model.recurrence import Recurrence
from bide.model.repeat import Repeat
from bide.model.replies import Found, Outcomes, Page
from bide.model.runs import Run, following, run_id
from bide.model.times import HOUR_MS, LATEST, MINUTE_MS
from bide.model.zones import is_newer
from bide.worker.periodic.chain import alive
from bide.worker.periodic.old_ticks import (
    OldLink,
    OldTick,
    is_untouched,
    old_links,
    read_old_tick,
)
from bide.worker.periodic.ticks import SCHEDULE_ID, ScheduleBody, read_body, tick_of
from bide.worker.periodic.upkeep import PeriodicUpkeep

SET_BACK = HOUR_MS
"""By how much a clock may be set back, in milliseconds, so that no tick runs twice. If the last
tick is later than that from now, the clock was wrong when it ran."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """One schedule of an app."""

    queue: str
    """The queue of its message."""
    name: str
    """The name of its function, for the log."""
    recurrence: Recurrence
    """Its times, in the time zone in which users see them."""
    rule: Repeat
    """The rule of its message."""
    attempts: int
    """The maximum number of attempts of a tick."""

    def body(self, since: int) -> ScheduleBody:
        """Return what it declares, in a process that started at a time in Unix milliseconds."""
        return ScheduleBody(self.rule.text, self.recurrence.zone.key, self.attempts, since)

    def has_time(self, moment: int) -> bool:
        """Return whether it ticks at a time in Unix milliseconds."""
        return self.recurrence.after(moment - 1) == moment


_log = logger("bide.worker")


class ScheduleTicks(PeriodicUpkeep):
    """Keeps the message of a schedule in its queue, as the app declares it, and runs its ticks.

    Args:
        schedule: the schedule.
        store_client: runs its commands on the store.
    """

    def __init__(self, schedule: Schedule, store_client: StoreClient) -> None:
        super().__init__(store_client, schedule.queue)
        self._schedule = schedule
        self._started: int | None = None
        """When this process began with the schedule, by the store's clock in Unix milliseconds;
        `None`: it has not yet."""
        self._has_looked = False
        """Whether it has looked for ticks of a chain."""

    async def started(self) -> int:
        """Return when this process began with the schedule, by the store's clock."""
        if self._started is None:
            self._started = await self.now()
        return self._started

    async def ensure(self, *, refill: bool = False) -> None:
        """Put the message if there is none; adapt it if it waits, and is not as declared."""
        message = await self._message()
        links = [] if message is not None and self._has_looked else await self._old_links()
        # The time is read after the message: what another process changes in between cannot look
        # wrong, only outdated.
        now = await self.now()
        self._started = self._started or now
        if message is None or message.state == "dead":
            replaced = await self._postponed(links, now)
            await self._put(message, links, replaced, now)
        else:
            await self._adapt(message, now)
            first_at = self._run_of(message, now).at
            replaced = [link for link in links if link.is_untouched and link.tick.due >= first_at]
        self._has_looked = True
        if replaced:
            ids = [link.message.id for link in replaced]
            await self.store_client.patiently(Outcomes, Cancel(self.queue, ids))

    async def attend(self, handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        """Run a tick, unless it is of an older declaration that has other times.

        The worker that runs a tick of an older declaration replaces it with the newer one. An edit
        could not: it needs a moment at which no worker holds the message, and there may be none.

        Args:
            handling: the claimed tick.
            go_on: calls the function of the schedule.

        Raises:
            Unfit: the message is no tick.
            Discard: the tick must not run; it is acked without running.
            StopRequested: it was cancelled while it ran.
        """
        message = handling.message
        tick = tick_of(message, handling.claimed)
        if tick is None:
            raise Unfit(f"this is not a tick, and {self.queue} is the queue of a schedule")
        old_tick = read_old_tick(message)
        if old_tick is not None and not self._has_looked:  # while it is there to go on from
            await self.ensure()
        run = await self._outdated_run(message)
        if message.attempt == 1 and not message.failures:
            await self._discard_outdated(run, old_tick)
        handling.extra_argument = tick
        await go_on()
        self.end_if_cancelled(handling)
        if run is not None and not handling.outcome_ignored:
            now = await self.now()
            next_run = following(self._schedule.rule, run, handling.claimed, now)
            if next_run is not None:
                await self._put_successor(next_run)

    async def _discard_outdated(self, run: Run | None, old_tick: OldTick | None) -> None:
        """Leave a tick out that no worker has begun, if the schedule has other times now.

        Args:
            run: that is claimed, of an older declaration.
            old_tick: that is claimed, of a chain.

        Raises:
            Discard: the tick is left out.
        """
        at = run.at if run is not None else old_tick.due if old_tick is not None else None
        if at is None or self._schedule.has_time(at):
            return
        if run is not None:
            next_at = self._schedule.recurrence.after(await self.now())
            next_run = msgspec.structs.replace(run, at=next_at, zones=self._schedule.rule.zones)
            await self._put_successor(next_run)
        raise Discard(f"the schedule is {self._schedule.rule} now")

    async def _message(self) -> Message | None:
        """Return the message of the schedule; `None`: there is none."""
        found = await self.store_client.patiently(Found, Find(self.queue, [SCHEDULE_ID]))
        return found.messages[0]

    async def _old_links(self) -> list[OldLink]:
        """Return the ticks of a chain that wait or are leased, in the order of their times."""
        steps = alive(self.queue)
        return old_links(await arun_steps(steps, partial(self.store_client.patiently, Page)))

    async def _postponed(self, links: list[OldLink], now: int) -> list[OldLink]:
        """Return the ticks of a chain that no worker has begun, or can begin within a minute.

        In that time the message takes their place. If this process dies, they are run instead.
        """
        untouched = [link for link in links if link.is_untouched]
        later = now + MINUTE_MS
        ids = [link.message.id for link in untouched if link.message.due < later]
        if not ids:
            return untouched
        command = Reschedule(self.queue, ids, at=later)
        reply = await self.store_client.patiently(Outcomes, command)
        begun = {outcome.id for outcome in reply.outcomes if not outcome.done}
        return [link for link in untouched if link.message.id not in begun]

    async def _put(
        self, dead: Message | None, links: list[OldLink], replaced: list[OldLink], now: int
    ) -> None:
        """Put the message; if somebody has buried it, that is a dead letter as of any run.

        Args:
            dead: what somebody has buried; `None`: there is no message.
            links: ticks of a chain.
            replaced: those with the first of which it goes on; if there are none, it goes on after
                the last of the others.
            now: the time.
        """
        schedule = self._schedule
        body = schedule.body(await self.started())
        run = Run(schedule.recurrence.after(now), zones=schedule.rule.zones)
        on_conflict: OnConflict = "keep"
        if dead is not None:
            buried = self._run_of(dead, now)
            run = msgspec.structs.replace(run, previous=buried.previous)
            letter = msgspec.structs.replace(
                dead.as_item(dead.failures, dead.ended),
                id=run_id(SCHEDULE_ID, buried.at),
                rule=None,
                run=None,
            )
            try:
                await self.store_client.patiently(Outcomes, Put(self.queue, [letter]))
            except AccessDenied as error:
                _log.error(
                    "%s: its message was buried, and the schedule does not go on until it is "
                    "revived: %s",
                    schedule.name,
                    error,
                )
                return
            on_conflict = "revive"
        elif links:
            tick = links[-1].tick
            previous = tick.due if schedule.has_time(tick.due) else tick.previous
            run = msgspec.structs.replace(run, previous=previous)
            if replaced:
                tick = replaced[0].tick
                run = Run(tick.due, previous=tick.previous)
            run = self._planned(run, now)
            if tick.spec == schedule.recurrence.spec:
                body = msgspec.structs.replace(body, since=tick.since)
        command = Put(self.queue, [self._item(body, run)], on_conflict)
        await self.store_client.patiently(Outcomes, command)

    async def _put_successor(self, run: Run) -> None:
        """Let the message, as this process declares it, follow the run that this process holds."""
        # Only an item with `latest` is stored as a successor; this one bounds nothing.
        item = self._item(self._schedule.body(await self.started()), run)
        command = Put(self.queue, [msgspec.structs.replace(item, latest=LATEST)], "replace")
        await self.store_client.patiently(Outcomes, command)
        _log.info("%s: the schedule is %s now", self._schedule.name, self._schedule.rule)

    def _item(self, body: ScheduleBody, run: Run) -> Item:
        """Return the message of the schedule for a put."""
        return Item(
            SCHEDULE_ID,
            msgspec.json.encode(body),
            at=run.due,
            attempts=body.attempts,
            rule=body.rule,
            run=run.text,
        )

    async def _outdated_run(self, message: Message) -> Run | None:
        """Return the run of a claimed message if this process declares the schedule, and newer.

        `None`: the message is as this process declares it, a newer process has declared it, or it
        is a single run.
        """
        if message.id != SCHEDULE_ID or not message.repeats:
            return None
        if not self._is_outdated(message, await self.started()):
            return None
        return Run.of(message.run or "")

    def _is_outdated(self, message: Message, started: int) -> bool:
        """Return whether an older process, or none, has declared the schedule of a message.

        A later edit of the message stays until the declaration changes.
        """
        if not message.data:  # a server withholds it: the token has no right to it
            return False
        body = read_body(message)
        if body is None:
            return True
        return body.since < started and not body.declares(self._schedule.body(started))

    async def _adapt(self, message: Message, now: int) -> None:
        """Edit a message that waits, if it is outdated, or if a wrong clock has planned its run."""
        if message.state not in ("delayed", "ready"):
            if message.state != "leased":
                _log.warning(
                    "%s: its message was cancelled while a tick ran; the schedule goes on when the "
                    "queue no longer remembers that",
                    self._schedule.name,
                )
            return
        if not message.repeats:  # it was cancelled, and ends with this run
            return
        schedule, started = self._schedule, await self.started()
        is_outdated = self._is_outdated(message, started)
        run = self._run_of(message, now)
        planned_run = run
        is_same = message.rule == schedule.rule.text
        # By rules of its zone that this process does not know yet.
        is_ahead = is_same and is_newer(run.zones, schedule.rule.zones)
        if is_untouched(message) and not run.held and not is_ahead:
            planned_run = self._planned(run, now)
        # A run of `run_now` is at no time of the rule.
        is_wrong = is_same and run.at > planned_run.at
        if is_outdated or is_wrong:
            await self._edit(message, run, planned_run, is_outdated=is_outdated)

    async def _edit(
        self, message: Message, run: Run, planned_run: Run, *, is_outdated: bool
    ) -> None:
        """Let the waiting message be as this process declares it, unless it changes meanwhile.

        Args:
            message: the message of the schedule.
            run: the run that it stands for.
            planned_run: the run that it is to stand for; may be the same.
            is_outdated: whether its rule or its body are not those that are declared.
        """
        schedule = self._schedule
        options: dict[str, Any] = {}
        if is_outdated:
            body = schedule.body(await self.started())
            options = {"data": msgspec.json.encode(body), "attempts": body.attempts}
        if planned_run.at != run.at:
            # First, so that no worker can begin with the run that is replaced: a version does not
            # say which run it is of.
            move = Reschedule(self.queue, [SCHEDULE_ID], at=planned_run.due, if_due=message.due)
            reply = await self.store_client.patiently(Outcomes, move)
            if not reply.outcomes[0].done:
                return
        edit = Edit(
            self.queue,
            [SCHEDULE_ID],
            rule=schedule.rule.text,
            run=planned_run.text,
            if_version=message.version,
            **options,
        )
        reply = await self.store_client.patiently(Outcomes, edit)
        if reply.outcomes[0].done:
            _log.info(
                "%s: the schedule is %s, and ticks next at %s",
                schedule.name,
                schedule.rule,
                planned_run.text,
            )

    def _run_of(self, message: Message, now: int) -> Run:
        """Return the run of the message; of one that ends with this run, that of its due time.

        If it cannot be read here, return the next one.
        """
        if message.run is None:
            return Run(message.due if message.planned is None else message.planned)
        try:
            return Run.of(message.run)
        except InvalidArgument as error:
            _log.warning("%s: its run starts again: %s", self._schedule.name, error)
            at = self._schedule.recurrence.after(now)
            return Run(at, zones=self._schedule.rule.zones)

    def _planned(self, run: Run, now: int) -> Run:
        """Return a run that waits, at a time of this schedule that is not too far away."""
        previous, recurrence = run.previous, self._schedule.recurrence
        if previous is not None and previous > now + SET_BACK:
            previous = None
        next_at = recurrence.after(now if previous is None else max(now, previous))
        stays = self._schedule.has_time(run.at) and run.at <= next_at
        at = run.at if stays else next_at
        if at != run.at:
            run = msgspec.structs.replace(run, at=at, zones=self._schedule.rule.zones)
        return msgspec.structs.replace(run, previous=previous)
