"""Messages that other data of time zones plan for another time: local dates, and runs of a cron.

Pure functions of a message and the data. Only greater data than those by which a message was
planned count, so that processes of two versions do not move it back and forth.
"""

from typing import NamedTuple

import msgspec

from bide.model.message import RUN_ENDED, Message
from bide.model.recurrence import Recurrence
from bide.model.repeat import Repeat
from bide.model.runs import Run, merged
from bide.model.time_rule import date_of, in_window, repeat_of, time_rule_of, with_date
from bide.model.zones import ZoneData, is_newer


class Replanned(NamedTuple):
    """When a message is due by greater data of time zones, and what it then has."""

    due: int
    """In Unix milliseconds."""
    rule: str | None
    run: str | None


def has_zone(message: Message) -> bool:
    """Return whether the time of a message depends on a time zone."""
    return message.rule is not None and '"timezone"' in message.rule


def is_behind(message: Message, zones: ZoneData) -> bool:
    """Return whether a message with a local date was planned by smaller data."""
    planned = None if message.rule is None or message.repeats else date_of(message.rule)
    return planned is not None and is_newer(zones.version, planned.zones)


def replanned(message: Message, zones: ZoneData) -> Replanned | None:
    """Return what becomes of a message by some data; `None`: it stays as it is.

    A message stays whose due time somebody has changed, which is held or was added to those of its
    rule, or with which a worker has begun.

    Args:
        message: one that waits, or was just claimed.
        zones: the data.

    Raises:
        InvalidArgument: its rule cannot be read, or the data do not have its zone.
    """
    attempts_made = message.attempt - (message.state == "leased")
    if not has_zone(message) or attempts_made > 0 or message.failures:
        return None
    return _run(message, zones) if message.repeats else _date(message, zones)


def _date(message: Message, zones: ZoneData) -> Replanned | None:
    """Return what becomes of a message with a local date."""
    planned = date_of(message.rule or "")
    if planned is None:
        return None
    rule = time_rule_of(message.rule or "")
    new_plan = planned.replanned(zones) if rule.is_on_date(message.as_edited().due) else None
    if new_plan is None:
        return None
    new_plan = in_window(new_plan, rule.window, zones)
    due = new_plan.at if new_plan.opens is None else new_plan.opens
    if (new_plan.at, due) == (planned.at, rule.due_on(planned)):
        return None
    new_plan = msgspec.structs.replace(new_plan, zones=zones.version, put_off=None)
    return Replanned(due, with_date(message.rule, new_plan, zones), None)


def _run(message: Message, zones: ZoneData) -> Replanned | None:
    """Return what becomes of a message that repeats by a rule or in a window in a zone.

    A run whose time is none of the rule any more moves to the nearest one after the run before it.
    """
    text = message.run or ""
    if text.startswith(RUN_ENDED):
        return None
    run = Run.of(text)
    was_moved = message.due != run.due or message.as_edited().due != run.due
    is_older = run.zones and is_newer(zones.version, run.zones)
    if not is_older or was_moved or run.held or run.added:
        return None
    rule, window = repeat_of(message.rule or ""), time_rule_of(message.rule or "").window
    times = rule.by(zones)
    at = _nearest(run, rule, times)
    if at is None:
        return None
    if window is not None:
        window = window.by(zones)
        at = merged(rule, window, at, times)
    moved = msgspec.structs.replace(run, at=at, zones=zones.version).in_window(window)
    if (moved.at, moved.due) == (run.at, run.due):
        return None
    return Replanned(moved.due, message.rule, moved.text)


def _nearest(run: Run, rule: Repeat, times: Recurrence) -> int | None:
    """Return the time of a rule that is nearest to that of a run, and after the run before it.

    `None`: the rule has none.
    """
    later = times.after(run.at - 1)
    if later == run.at:
        return later
    start = 0 if rule.start is None else int(rule.start.timestamp() * 1000)
    nearest = later if later <= rule.end else None
    # Only a time that is nearer than the later one.
    floor = max(run.previous or 0, start - 1, run.at - (later - run.at))
    if floor < run.at:
        earlier = times.latest(run.at, floor)
        nearest = earlier if earlier > floor else nearest
    return nearest
