"""The messages in the queue of a schedule, and the ticks that they stand for.

A schedule is one message that repeats. Beside it there may be dead letters of its runs, and runs
that somebody has put with `backfill`: `SCHEDULE_ID@TIME`.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from bide.model.message import Message
from bide.model.repeat import Cron, Repeat
from bide.model.runs import Run, began_late, first_begun
from bide.model.time_rule import repeat_of
from bide.model.times import MINUTE_MS, Ms, to_datetime
from bide.model.zones import zone_of
from bide.worker.periodic.chain import moment_of
from bide.worker.periodic.old_ticks import read_old_tick
from bide.worker.periodic.tick import Tick

SCHEDULE_ID = "schedule"
"""The id of the message of a schedule, in the queue of the schedule."""

RUN_PREFIX = f"{SCHEDULE_ID}@"
"""How the ids of single runs of a schedule begin."""


class ScheduleBody(msgspec.Struct, frozen=True):
    """The body of the message of a schedule: what an app has declared last."""

    rule: str
    """When it ticks, as `Repeat.text`. The message has the same one, unless somebody has edited
    it."""
    timezone: str
    """In which users see the times: the rule of a period has none."""
    attempts: int
    since: Ms
    """When the process that declared it started, by the store's clock in Unix milliseconds: of two
    different declarations the newer one counts."""

    def declares(self, other: "ScheduleBody") -> bool:
        """Return whether another one declares the same, by whichever process."""
        return msgspec.structs.replace(other, since=self.since) == self


def read_body(message: Message) -> ScheduleBody | None:
    """Return what a message of a schedule says; `None`: it is of no schedule."""
    if message.id != SCHEDULE_ID and not message.id.startswith(RUN_PREFIX):
        return None
    try:
        return msgspec.json.decode(message.data, type=ScheduleBody) if message.json else None
    except msgspec.MsgspecError:
        return None


def zone_of_ticks(rule: Repeat, body: ScheduleBody) -> ZoneInfo:
    """Return the time zone in which users see the ticks of a rule.

    Raises:
        InvalidArgument: it is not known here.
    """
    return zone_of(rule.timezone if isinstance(rule, Cron) else body.timezone)


def tick_of(message: Message, claimed: int) -> Tick | None:
    """Return the tick that a claimed message stands for; `None`: it is no message of a schedule.

    Args:
        message: of the queue of a schedule, as it was claimed.
        claimed: when, by the store's clock in Unix milliseconds.

    Raises:
        InvalidArgument: its rule, or its time zone, is not known here.
    """
    body = read_body(message)
    if body is None:
        return _old_tick(message, claimed)
    if message.repeats:
        return _tick_of_run(message, body, repeat_of(message.rule or ""), claimed)
    planned = message.due if message.planned is None else message.planned
    at = moment_of(message.id.removeprefix(RUN_PREFIX))
    # The id without a time is of a schedule that was cancelled while a worker ran it.
    return _tick_of_time(message, body, planned if at is None else at, claimed)


def _tick_of_run(message: Message, body: ScheduleBody, rule: Repeat, claimed: int) -> Tick:
    """Return the tick of a run of the message of a schedule."""
    run = Run.of(message.run or "")
    return Tick(
        schedule=message.queue,
        due=_local(run.at, rule, body),
        previous=None if run.previous is None else _local(run.previous, rule, body),
        missed=_is_late(rule, run, message, claimed) or _stands_for_others(rule, run, body),
    )


def _tick_of_time(message: Message, body: ScheduleBody, at: int, claimed: int) -> Tick:
    """Return the tick of a run that is a message of its own, such as a dead letter."""
    rule = repeat_of(body.rule)
    before = _time_before(rule, at)
    return Tick(
        schedule=message.queue,
        due=_local(at, rule, body),
        previous=None if before is None else _local(before, rule, body),
        missed=_is_late(rule, Run(at), message, claimed),
    )


def _old_tick(message: Message, claimed: int) -> Tick | None:
    """Return the tick of a message of a chain; `None`: it is none."""
    old_tick = read_old_tick(message)
    if old_tick is None:
        return None
    zone, previous = old_tick.recurrence.zone, old_tick.previous
    begun = first_begun(message, claimed)
    return Tick(
        schedule=message.queue,
        due=to_datetime(old_tick.due).astimezone(zone),
        previous=None if previous is None else to_datetime(previous).astimezone(zone),
        missed=old_tick.missed or (begun is not None and begun > old_tick.due + MINUTE_MS),
    )


def _is_late(rule: Repeat, run: Run, message: Message, claimed: int) -> bool:
    """Return whether a worker began too late; a run that was interrupted had begun in time."""
    begun = first_begun(message, claimed)
    return begun is not None and began_late(rule, run, message, begun)


def _stands_for_others(rule: Repeat, run: Run, body: ScheduleBody) -> bool:
    """Return whether a run stands for earlier times as well, at which no worker ran it."""
    if rule.missed != "once" or run.previous is None:
        return False
    # Before the declaration there was no time that could be missed.
    first_time = rule.after(max(run.previous, body.since))
    return first_time is not None and first_time < run.at


def _time_before(rule: Repeat, at: int) -> int | None:
    """Return the last time of a rule before another time; `None`: there is none."""
    # A rule can only be asked for the next time, so this looks back further and further.
    span = MINUTE_MS
    while span < 2 * at:
        first_time = rule.after(max(0, at - span))
        if first_time is not None and first_time < at:
            return rule.recurrence().latest(at - 1, first_time)
        span *= 2
    return None


def _local(moment: int, rule: Repeat, body: ScheduleBody) -> datetime:
    """Return a time as users see it."""
    return to_datetime(moment).astimezone(zone_of_ticks(rule, body))
