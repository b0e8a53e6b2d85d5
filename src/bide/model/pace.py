"""Rates: so many messages per second, minute, hour or day, evenly spaced.

A rate is kept as the interval from one message to the next, in microseconds. Spacing follows the
generic cell rate algorithm (ITU-T I.371): a queue or group has the time at which its last message
was served, and the next may be served one interval later. A queue that was idle, or a worker that
woke late, may catch up on `CREDIT` of it and no more. So in any span of `w` seconds at most
`rate * (w + 0.01) + 1` messages are served, and over a long time `rate` per second.
"""

import math
import re
from typing import Any

from bide.model.errors import InvalidArgument

LIMITS = ("limit", "rate", "group_limit", "group_rate")
"""The settings that make a queue a limited one, by name."""

CREDIT = 10_000
"""How far, in microseconds, the time of the last message may lag behind the clock."""

MAX_RATE = 100_000
"""The highest rate per second: above it, rounding to microseconds would be felt."""

SLOWEST = 86_400_000_000
"""The longest interval in microseconds: one message a day."""

Rate = float | str
"""Messages per second, or a string: "5/s", "100/m", "1000/h", "20/d"."""

_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": SLOWEST}
_FORM = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(?:/\s*([smhd])\s*)?")


def interval(rate: Rate, what: str = "rate") -> int:
    """Return the interval of a rate in microseconds, rounded up; 0 for a rate of 0: no limit.

    Args:
        rate: messages per second, or a string such as "100/m" (units s, m, h, d) or "5".
        what: the name of the argument, for the error.

    Raises:
        InvalidArgument: it is not of one of these forms, or not from 1 a day to 100,000 a second.

    Example:
        >>> interval(5), interval("100/m"), interval(0)
        (200000, 600000, 0)
    """
    count, unit = rate, _UNITS["s"]
    if isinstance(rate, str):
        found = _FORM.fullmatch(rate[:64])
        if found is None or len(rate) > 64:
            raise InvalidArgument(
                f"{what}={rate[:64]!r} is not a valid rate; write '5/s', '100/m', '1000/h' or "
                "'20/d', or give messages per second"
            )
        count, unit = float(found[1]), _UNITS[found[2] or "s"]
    if isinstance(count, bool) or not isinstance(count, (int, float)):
        raise InvalidArgument(
            f"{what} cannot be a {type(rate).__name__}; give messages per second, or a string "
            "such as '100/m'"
        )
    if count == 0:
        return 0
    # NaN is not within any bounds.
    if not unit / SLOWEST <= count <= MAX_RATE * unit / _UNITS["s"]:
        raise InvalidArgument(
            f"{what}={rate!r} is not from '1/d' to '{MAX_RATE}/s'; 0 means no limit"
        )
    return math.ceil(round(unit / count, 6))


def rate_text(us: int) -> str:
    """Return the rate of an interval as text, in the largest unit in which it is a whole number.

    Example:
        >>> [rate_text(interval(rate)) for rate in (5, "100/m", "7/s", "1.5/s", "30/m", "48/d")]
        ['5/s', '100/m', '7/s', '90/m', '30/m', '2/h']
    """
    for unit, length in _UNITS.items():
        count = max(1, round(length / us))
        if math.ceil(round(length / count, 6)) == us:
            return f"{count}/{unit}"
    return f"{_UNITS['s'] / us:.6g}/s"


def limits_of(told: Any) -> dict[str, Any]:
    """Return the limits in settings or counts as people and programs read them: rates as text.

    Example:
        >>> from bide.model.replies import Settings
        >>> limits_of(Settings(False, 0, limit=3, group_rate=600_000))
        {'limit': 3, 'rate': None, 'group_limit': 0, 'group_rate': '100/m'}
    """
    found: dict[str, Any] = {name: getattr(told, name) for name in LIMITS}
    for name in ("rate", "group_rate"):
        found[name] = rate_text(getattr(told, name)) if found[name] else None
    return found


def limits_text(told: Any) -> str:
    """Return the limits in settings or counts as text, empty if there are none.

    Example:
        >>> from bide.model.replies import Settings
        >>> limits_text(Settings(False, 0, limit=3, group_rate=600_000))
        'limit 3, group rate 100/m'
    """
    found = limits_of(told).items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found if value)


def served(last: int, us: int, now: int) -> int:
    """Return the time at which a message that is served `now` counts as served, in microseconds.

    It may be served if `last + us` has come; the next one may be at the returned time + `us`.

    Args:
        last: the time of the message before, 0 if there was none.
        us: the interval; 0: no limit.
        now: the time, in microseconds.

    Example:
        >>> served(1_000_000, 100_000, 1_100_400)
        1100000
        >>> served(1_000_000, 100_000, 9_000_000)
        8990000
    """
    return max(last + us, now - CREDIT)
