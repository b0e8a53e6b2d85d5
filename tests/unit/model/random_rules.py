"""Random cron expressions, and their times by dateutil, which shares no code with ours."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from dateutil import rrule  # type: ignore[import-untyped]

import bide
from bide.model.times import unix

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
]
FIRST, DAYS = datetime(2024, 1, 1, tzinfo=UTC), 1_500
"""From when on rules begin, and within how many days."""


class RandomRule(NamedTuple):
    """A rule, and what it is made of."""

    cron: bide.Cron
    fields: dict[str, Any]
    """The numbers of each field, by the names of dateutil; missing: any."""
    start: datetime
    """In the zone of the rule, without saying so. Its clocks do not skip it; if they show it twice,
    the first time is meant."""


def random_rule(chance: Random) -> RandomRule:
    """Return a rule with random fields, zone and start."""
    minutes = chance.sample(range(60), chance.choice([1, 1, 2, 4]))
    hours = chance.sample(range(24), chance.choice([1, 1, 2, 3]))
    days = months = weekdays = None
    if chance.random() < 0.4:
        days = chance.sample(range(1, 29), chance.randint(1, 5))
    if chance.random() < 0.3:
        months = chance.sample(range(1, 13), chance.randint(1, 6))
    if chance.random() < 0.5:
        weekdays = chance.sample(range(7), chance.randint(1, 6))  # of dateutil: Monday is 0
    cron_weekdays = None if weekdays is None else [(day + 1) % 7 for day in weekdays]
    texts = [_text(field) for field in (minutes, hours, days, months, cron_weekdays)]
    named = {"bymonthday": days, "bymonth": months, "byweekday": weekdays}
    zone = chance.choice(ZONES)
    start = FIRST + timedelta(minutes=chance.randrange(DAYS * 24 * 60))
    return RandomRule(
        bide.Cron(" ".join(texts), zone),
        {"byminute": minutes, "byhour": hours}
        | {name: numbers for name, numbers in named.items() if numbers is not None},
        start.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0),
    )


def _text(numbers: list[int] | None) -> str:
    """Return a field of an expression."""
    return "*" if numbers is None else ",".join(map(str, numbers))


def times_by_dateutil(rule: RandomRule) -> Iterator[int]:
    """Yield the times of a rule from its start on, in Unix milliseconds.

    As Debian's cron has it: if the day of the month and the day of the week are given, either will
    do. A time that the clocks skip happens right after the gap; one that they repeat happens once.
    """
    fields, zone = dict(rule.fields), ZoneInfo(rule.cron.timezone)
    usual = {"bysecond": 0, "dtstart": rule.start, "cache": False}
    local_times: Any
    if "bymonthday" in fields and "byweekday" in fields:
        local_times = rrule.rruleset()
        for left_out in ("bymonthday", "byweekday"):
            either = {name: field for name, field in fields.items() if name != left_out}
            local_times.rrule(rrule.rrule(rrule.DAILY, **either, **usual))
    else:
        local_times = rrule.rrule(rrule.DAILY, **fields, **usual)
    last = None
    for local_time in local_times:
        moment = _moment(local_time, zone)
        if moment != last:
            yield moment
        last = moment


def _moment(local_time: datetime, zone: ZoneInfo) -> int:
    """Return a local time in Unix milliseconds: if the clocks skip it, the end of the gap."""
    aware = local_time.replace(tzinfo=zone)
    back = aware.astimezone(UTC).astimezone(zone)
    if back.replace(tzinfo=None) == local_time:
        return unix(aware)
    # The gap is as long as the offsets differ; it ends where the later one begins.
    begin = aware.replace(fold=1).astimezone(UTC)
    end = aware.astimezone(UTC)
    while end - begin > timedelta(seconds=1):
        middle = begin + (end - begin) / 2
        if middle.astimezone(zone).utcoffset() == end.astimezone(zone).utcoffset():
            end = middle
        else:
            begin = middle
    return int(end.timestamp()) // 60 * 60_000  # clocks change at a whole minute


def difference(rule: RandomRule, count: int) -> str:
    """Return where the first times of a rule differ from those of dateutil; empty: nowhere."""
    moment = unix(rule.start.replace(tzinfo=ZoneInfo(rule.cron.timezone))) - 1
    for expected in islice(times_by_dateutil(rule), count):
        following = rule.cron.after(moment)
        if following != expected:
            return f"{rule.cron!r} after {moment}: {following}, and {expected} by dateutil"
        moment = expected
    return ""
