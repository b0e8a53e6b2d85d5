"""The first run of a message that repeats, when it is put or edited.

The rules are imported when they are needed: most programs put no message that repeats.
"""

from typing import Any, NamedTuple

from bide.model.errors import InvalidArgument
from bide.model.message import NewMessage


class FirstRun(NamedTuple):
    """What a message that repeats has at first."""

    rule: str
    run: str
    due: int
    """When it is due, in Unix milliseconds."""


def check_repeated_id(id: str) -> str:
    """Return the id of a message that repeats: those of its dead letters are longer.

    Raises:
        InvalidArgument: it is too long.
    """
    from bide.model.runs import MAX_REPEATED_ID

    if len(id.encode()) > MAX_REPEATED_ID:
        raise InvalidArgument(
            f"the id of a message that repeats may have {MAX_REPEATED_ID} bytes, so that its runs "
            "have ids, too; use a hash of it"
        )
    return id


def first_run_of(message: NewMessage, at: int | None, delay: int, now: int) -> FirstRun:
    """Return the first run of a message that repeats.

    Args:
        message: as the user made it.
        at: its due time, in Unix milliseconds; `None`: `delay` from now.
        delay: in milliseconds; 0 if the user gave no due time.
        now: in Unix milliseconds.

    Raises:
        InvalidArgument: it cannot repeat so.
    """
    for name in ("latest", "spread"):
        if getattr(message, name) is not None:
            raise InvalidArgument(
                f"{name}= and repeat= cannot be combined: its rule says when it is due"
            )
    is_given = at is not None or message.delay is not None
    return planned_first(message.repeat, now + delay if is_given and at is None else at, now)


def planned_first(repeat: Any, due: int | None, now: int) -> FirstRun:
    """Return the first run of a rule.

    Args:
        repeat: the rule.
        due: when the first run is due, in Unix milliseconds; `None`: as the rule says.
        now: in Unix milliseconds.

    Raises:
        InvalidArgument: it is no rule, or has no time from now on.
    """
    from bide.model.repeat import Repeat
    from bide.model.runs import Run, first_run

    if not isinstance(repeat, Repeat):
        raise InvalidArgument(
            f"repeat={repeat!r} is no rule; write bide.Cron('0 9 * * MON', 'Europe/Berlin') or "
            "bide.Every('15m')"
        )
    run = first_run(repeat, now) if due is None else Run(due, repeat.times)
    return FirstRun(repeat.text, run.text, run.at)
