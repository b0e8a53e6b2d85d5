"""The rule of a message's time: by which rule it repeats.

The rule is data that the message carries as text. No store reads it: whoever puts, settles or
claims the message does, and says when it is due.
"""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_RULE
from bide.model.repeat import Missed, Repeat, repeat


class TimeRule(NamedTuple):
    """All that says when a message is delivered, besides its due time."""

    repeat: Repeat | None
    """By which rule it repeats; `None`: it does not."""


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


_as_rule_text: Callable[[str], _RuleText] = msgspec.json.Decoder(_RuleText).decode


@lru_cache(maxsize=512)
def time_rule_of(text: str) -> TimeRule:
    """Return the rule of a text.

    Raises:
        InvalidArgument: it is no rule that this version knows, or its time zone is not known here.
    """
    try:
        fields = _as_rule_text(text)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{text[:MAX_RULE]!r} is not a rule: {error}") from error
    return TimeRule(repeat(**msgspec.structs.asdict(fields)))


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
