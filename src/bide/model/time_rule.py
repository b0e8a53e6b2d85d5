"""The rule of a message's time: by which rule it repeats, its date in a time zone, and its window.

The rule is data that the message carries as text. No store reads it: whoever puts, settles or
claims the message does, and says when it is due.
"""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_RULE
from bide.model.local_date import LocalDate, PlannedDate
from bide.model.repeat import Missed, Repeat, repeat
from bide.model.times import UnixMs
from bide.model.window import Window, WindowText
from bide.model.zones import ZoneData, is_version, remembers_zones


class TimeRule(NamedTuple):
    """All that says when a message is delivered, besides its due time."""

    repeat: Repeat | None = None
    """By which rule it repeats; `None`: it does not."""
    date: PlannedDate | None = None
    """The local date that it is planned for; `None`: it has none."""
    window: Window | None = None
    """When it may be delivered; `None`: at any time."""

    def opening(self, moment: int) -> int:
        """Return when the message may be delivered that is due at a time, in Unix milliseconds."""
        return moment if self.window is None else self.window.opening(moment)

    def is_on_date(self, due: int) -> bool:
        """Return whether a message that is due at a time is still planned for its local date."""
        return self.date is not None and due in (self.due_on(self.date), self.date.put_off)

    def due_on(self, date: PlannedDate) -> int:
        """Return when the message is due by its local date, by the time zones of who planned it."""
        return self.opening(date.at) if date.opens is None else date.opens

    @property
    def text(self) -> str | None:
        """The rule as a message has it; `None`: it says nothing.

        Raises:
            InvalidArgument: it is too long.

        Example:
            >>> TimeRule(window=Window("Mon-Fri 09:00-18:00")).text
            '{"window":{"hours":"Mon-Fri 09:00-18:00"}}'
        """
        if self.repeat is not None and self.date is None and self.window is None:
            return self.repeat.text
        fields: dict[str, Any] = {} if self.repeat is None else self.repeat.fields
        if self.date is not None:
            fields |= _fields_of_date(in_window(self.date, self.window))
        if self.window is not None:
            fields["window"] = WindowText.of(self.window)
        if not fields:
            return None
        text = msgspec.json.encode(_RuleText(**fields)).decode()
        if len(text) > MAX_RULE:
            raise InvalidArgument(_too_long(self, len(text)))
        return text


def _too_long(rule: TimeRule, length: int) -> str:
    """Return why a rule cannot be that of a message, and what to do."""
    text = f"as text, the rule of the message has {length:,} characters, and {MAX_RULE} are stored"
    if rule.window is not None and rule.window.holidays:
        return (
            f"{text}: give fewer of the {len(rule.window.holidays):,} holidays of its window, "
            "those of the time in which it is delivered; days that follow each other take little "
            "room. The window of a handler has room for all"
        )
    return f"{text}: give it shorter"


class _RuleText(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A rule as JSON has it."""

    cron: str | None = None
    every: float | str | None = None
    timezone: str | None = None
    start: datetime | float | None = None
    until: datetime | float | None = None
    times: int | None = None
    missed: Missed = "once"
    grace: float | str | None = None
    date: str | None = None
    at: UnixMs | None = None
    zones: str = ""
    spread: UnixMs = 0
    opens: UnixMs | None = None
    put_off: UnixMs | None = None
    window: WindowText | None = None


_DATE_FIELDS = ("date", "timezone", "at", "zones", "spread", "opens", "put_off")
"""The fields of a rule that say its local date."""

_as_rule_text: Callable[[str], _RuleText] = msgspec.json.Decoder(_RuleText).decode


@lru_cache(maxsize=512)
def time_rule_of(text: str) -> TimeRule:
    """Return the rule of a text.

    Raises:
        InvalidArgument: it is no rule that this version knows, or its time zone is not known here.
    """
    rule_text = _fields_of(text)
    window = None if rule_text.window is None else rule_text.window.window
    if window is not None and rule_text == _RuleText(window=rule_text.window):
        return TimeRule(window=window)
    fields = msgspec.structs.asdict(rule_text)
    del fields["window"]
    if fields["date"] is None:
        for name in ("date", "at", "zones", "spread", "opens", "put_off"):
            if fields.pop(name):
                raise _refusal(text, f"{name} goes with a date")
        return TimeRule(repeat=repeat(**fields), window=window)
    timezone, at, zones = fields["timezone"], fields["at"], fields["zones"]
    if timezone is None or at is None:
        raise _refusal(text, "a date needs its timezone, and at, the time that it was planned for")
    if zones and not is_version(zones):
        raise _refusal(text, f"{zones[:16]!r} is not a version of time zones")
    if fields["cron"] is not None or fields["every"] is not None:
        raise _refusal(text, "a message has a date, or repeats, and not both")
    local = LocalDate(fields["date"], timezone)
    date = PlannedDate(local, at, zones, fields["spread"], fields["opens"], fields["put_off"])
    return TimeRule(date=date, window=window)


remembers_zones(time_rule_of.cache_clear)


def _fields_of(text: str) -> _RuleText:
    """Return the fields of a rule.

    Raises:
        InvalidArgument: it has others, or they are of other types.
    """
    try:
        return _as_rule_text(text)
    except msgspec.MsgspecError as error:
        raise _refusal(text, str(error)) from error


def _refusal(text: str, why: str) -> InvalidArgument:
    """Return the error for a text that is no rule."""
    return InvalidArgument(f"{text[:MAX_RULE]!r} is not a rule: {why}")


def window_of(text: str | None) -> Window | None:
    """Return the window of a message with this rule; `None`: it has none.

    Raises:
        InvalidArgument: it is no rule that this version knows, or its time zone is not known here.

    Example:
        >>> window_of('{"window":{"hours":"Sat-Sun","holidays":"2026:1226"}}').holidays
        (datetime.date(2026, 12, 26),)
    """
    return None if text is None else time_rule_of(text).window


def checked_window(window: object) -> Window:
    """Return an argument as the `Window` that it must be.

    Raises:
        InvalidArgument: it has another type.
    """
    if not isinstance(window, Window):
        raise InvalidArgument(
            f"window={window!r} is not a window; write "
            "bide.Window('Mon-Fri 09:00-18:00', 'Europe/Berlin')"
        )
    return window


def repeat_of(text: str) -> Repeat:
    """Return the rule by which a message with this rule repeats.

    Raises:
        InvalidArgument: it is no rule that this version knows, or its time zone is not known here,
            or it does not say how to repeat.

    Example:
        >>> repeat_of('{"every":"15m"}')
        Every(period='15m', start=None, until=None, times=None, missed='once', grace=None)
    """
    rule = time_rule_of(text).repeat
    if rule is None:
        raise InvalidArgument(f"{text!r} does not say how to repeat")
    return rule


def date_of(text: str) -> PlannedDate | None:
    """Return the local date of a rule; `None`: it has none, or this version cannot read it."""
    if '"date"' not in text:
        return None
    try:
        return time_rule_of(text).date
    except InvalidArgument:  # planning raises this; showing must not fail
        return None


def _fields_of_date(date: PlannedDate) -> dict[str, Any]:
    """Return the fields of a rule that say a local date."""
    return {
        "date": date.local.date,
        "timezone": date.local.timezone,
        "at": date.at,
        "zones": date.zones,
        "spread": date.spread,
        "opens": date.opens,
        "put_off": date.put_off,
    }


def with_put_off(rule: str, asked: int, due: int) -> str:
    """Return the rule of a message for a put elsewhere, which does not say that it was put off.

    Args:
        rule: of the message.
        asked: the due time that its last put, edit or reschedule asked for.
        due: when it is due, in Unix milliseconds.
    """
    if date_of(rule) is None or not time_rule_of(rule).is_on_date(asked):
        return rule
    text = msgspec.json.encode(msgspec.structs.replace(_fields_of(rule), put_off=due)).decode()
    return text if len(text) <= MAX_RULE else rule


def in_window(
    date: PlannedDate, window: Window | None, zones: ZoneData | None = None
) -> PlannedDate:
    """Return a date as it is planned in a window.

    Args:
        date: the date.
        window: of its message; `None`: it has none.
        zones: the data of time zones; `None`: those of this process.

    Raises:
        InvalidArgument: they do not have the zone of the window.
    """
    if window is None:
        return date if date.opens is None else msgspec.structs.replace(date, opens=None)
    own_window = window if zones is None else window.by(zones)
    return msgspec.structs.replace(date, opens=own_window.opening(date.at))


def with_date(
    rule: str | None, date: PlannedDate | None, zones: ZoneData | None = None
) -> str | None:
    """Return a rule with another local date, or none; all else that it says stays.

    Args:
        rule: as a message has it; `None`: it has none.
        date: the date.
        zones: the data of time zones by which it is planned; `None`: those of this process.

    Returns:
        `None`: nothing is left of the rule.

    Raises:
        InvalidArgument: it is no rule that this version knows.

    Example:
        >>> with_date(None, PlannedDate(LocalDate("2027-03-28 09:00", "Europe/Paris"), 0))
        '{"timezone":"Europe/Paris","date":"2027-03-28 09:00","at":0}'
    """
    if rule is None and date is None:
        return None
    fields = _RuleText() if rule is None else _fields_of(rule)
    values: dict[str, Any] = dict.fromkeys(_DATE_FIELDS) | {"zones": "", "spread": 0}
    if date is not None:
        window = None if fields.window is None else fields.window.window
        values = _fields_of_date(in_window(date, window, zones))
    text = msgspec.json.encode(msgspec.structs.replace(fields, **values)).decode()
    return None if text == "{}" else text
